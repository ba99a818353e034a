"""Results of jobs: stored with the settlement, read from any process, waited for without polling storms."""

import asyncio
import pickle
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from structlog.contextvars import bind_contextvars

from holdfast import (
    Cancel,
    ConfigurationError,
    Context,
    Holdfast,
    JobFailed,
    Limit,
    NotFound,
    Published,
    Queue,
    RetryPolicy,
    Snooze,
)
from holdfast.brokers import redis
from holdfast.core.delivery import Status
from holdfast.core.identity import first_id
from holdfast.interfaces.cli.deliveries.delivery_report import lines
from holdfast.interfaces.presentation.views import dumps
from holdfast.stores.admin.actions import cancel, replay
from holdfast.stores.deliveries.result import forget_results
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.queries.query import clock
from tests.engine.ways import AWAITING, BLOCKING, Blocking
from tests.support.apps import MakeApp
from tests.support.worker import drain, eventually, only, pass_time, query, run_records, working

ONCE = RetryPolicy.none()


@dataclass
class Sum:
    total: int
    note: str | None = None


def blocking(dsn: str) -> Blocking:
    return next(iter(BLOCKING["sqlite" if dsn.startswith("sqlite") else "postgres18"].values()))


async def kept(hf: Holdfast) -> int:
    ((count,),) = await query(hf, "select count(*) from {hf}result")
    return int(count)


async def test_a_result_is_returned_as_its_annotation_describes_it(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def add(a: int, b: int) -> Sum | Snooze:
        return Sum(a + b)

    handle = await add.enqueue(1, 2)
    await drain(hf)
    assert await handle.result(timeout="5s") == Sum(3)
    assert await add.handle(handle.id).result(timeout=0) == Sum(3)
    assert await hf.result(handle.id) == {"total": 3, "note": None}
    assert await asyncio.to_thread(hf.sync.result, handle.id) == {"total": 3, "note": None}
    assert await asyncio.to_thread(handle.sync.result, timeout=1) == Sum(3)
    assert await asyncio.to_thread(add.sync.enqueue, 1, 2) != handle
    assert pickle.loads(pickle.dumps(handle)) == Published(handle.id, True)  # noqa: S301


async def test_waiting_callers_are_woken_by_the_worker(hf: Holdfast, make_app: MakeApp) -> None:
    other, gate = make_app(), asyncio.Event()

    @hf.job(result="1h")
    async def slow(n: int) -> int:
        await gate.wait()
        return n

    handles = [await slow.enqueue(n) for n in range(3)]
    async with working(hf):
        waits = [asyncio.create_task(handle.result(timeout="15s")) for handle in handles]
        waits += [asyncio.create_task(other.result(handle.id, timeout="15s")) for handle in handles]
        waits += [asyncio.create_task(asyncio.to_thread(handles[0].sync.result, timeout="15s"))]
        await asyncio.sleep(0.1)
        assert not any(wait.done() for wait in waits)
        gate.set()
        assert await asyncio.gather(*waits) == [0, 1, 2, 0, 1, 2, 0]
    assert [thread.name for thread in threading.enumerate()].count("holdfast-results") == 2


async def test_a_wait_ends_with_its_time_out_and_names_the_delivery(hf: Holdfast) -> None:
    @hf.job(result="1h")
    def later() -> None: ...

    handle = await later.using(delay="1h").enqueue()
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"later has not ended .* after 50ms: it is pending; .*deliveries show"):
        await handle.result(timeout="50ms")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(handle.sync.result, timeout=0.05)
    assert time.monotonic() - begin < 5
    with pytest.raises(ConfigurationError, match=r"pass the UUID that enqueue returned"):
        await hf.result(str(handle.id))  # type: ignore[arg-type]


async def test_a_failed_and_a_cancelled_job_raise_their_error(hf: Holdfast) -> None:
    @hf.job(result="1h", retry=ONCE)
    async def fail() -> None:
        raise ValueError("no such order")

    @hf.job(result="1h")
    async def stop() -> None:
        raise Cancel("not needed")

    failing, stopping = await fail.enqueue(), await stop.enqueue()
    waits = [asyncio.create_task(handle.result(timeout="15s")) for handle in (failing, stopping)]
    await drain(hf)
    failed, stopped = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(failed, JobFailed)
    assert (failed.state, failed.error_type, failed.error) == ("failed", "ValueError", "no such order")
    assert f"holdfast deliveries show {(await only(hf, 'fail')).id}" in str(failed)
    assert isinstance(stopped, JobFailed)
    assert (stopped.state, stopped.error) == ("cancelled", "not needed")
    assert pickle.loads(pickle.dumps(failed)).error == "no such order"  # noqa: S301


async def test_an_operators_cancellation_ends_a_wait(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def later() -> None: ...

    handle = await later.using(delay="1h").enqueue()
    wait = asyncio.create_task(handle.result(timeout="15s"))
    await asyncio.sleep(0.02)
    assert await hf.store.run(cancel([(await only(hf)).id], "ada", "obsolete"))
    with pytest.raises(JobFailed, match="cancelled"):
        await wait


async def test_a_retried_job_is_waited_for(hf: Holdfast) -> None:
    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=3))
    async def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("again")
        return ctx.attempt

    handle = await flaky.enqueue()
    wait = asyncio.create_task(handle.result(timeout="15s"))
    await drain(hf)
    assert await wait == 3


async def test_a_replay_hides_the_result_and_replaces_it(hf: Holdfast) -> None:
    runs = 0

    @hf.job(result="1h")
    async def count() -> int:
        nonlocal runs
        runs += 1
        return runs

    handle = await count.enqueue()
    await drain(hf)
    assert await handle.result(timeout=0) == 1
    assert await hf.store.run(replay([(await only(hf)).id], "ada", "again", rerun=True))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0)
    await drain(hf)
    assert await handle.result(timeout=0) == 2
    assert await kept(hf) == 1


async def test_ctx_complete_commits_the_result_with_the_effect(hf: Holdfast, dsn: str) -> None:
    open, attempts = blocking(dsn), 0

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=2))
    def pay(ctx: Context) -> Any:
        nonlocal attempts
        attempts += 1
        with open(dsn) as (conn, _):
            ctx.sync.complete(conn=conn, result={"paid": ctx.attempt})
            if ctx.attempt == 1:
                raise ConnectionError("rolled back")
        return "ignored"

    handle = await pay.enqueue()
    await drain(hf)
    assert (await handle.result(timeout=0), attempts) == ({"paid": 2}, 2)


async def test_an_async_handler_completes_with_its_result(hf: Holdfast, dsn: str) -> None:
    ways = AWAITING["sqlite" if dsn.startswith("sqlite") else "postgres18"]

    @hf.job(result="1h")
    async def pay(ctx: Context, kind: str) -> None:
        async with ways[kind](dsn) as (conn, _):
            await ctx.complete(conn=conn, result=[kind, None])

    handles = {kind: await pay.enqueue(kind) for kind in ways}
    await drain(hf)
    assert [await hf.result(handles[kind].id, timeout=0) for kind in ways] == [[kind, None] for kind in ways]


async def test_ctx_complete_without_its_result_is_refused(hf: Holdfast, dsn: str) -> None:
    open = blocking(dsn)

    @hf.job(result="1h")
    def forgets(ctx: Context) -> int:
        with open(dsn) as (conn, _):
            ctx.sync.complete(conn=conn)
        return 1

    @hf.job()
    def keeps_none(ctx: Context) -> None:
        with open(dsn) as (conn, _):
            ctx.sync.complete(conn=conn, result=1)

    handle = await forgets.enqueue()
    await keeps_none.enqueue()
    await drain(hf)
    with pytest.raises(JobFailed, match=r"pass the result to ctx.complete\(conn=..., result=...\)"):
        await handle.result(timeout=0)
    assert "declare keeps_none with result='1h'" in str((await only(hf, "keeps_none")).last_error)


@pytest.mark.parametrize(
    ("value", "problem"),
    [(object(), "object"), ({"a": [float("nan")]}, r"\$\.a\[0\]"), ("x" * 2000, "over the limit of 1,000")],
)
async def test_a_result_that_cannot_be_stored_is_a_dead_letter(make_app: MakeApp, value: object, problem: str) -> None:
    hf, runs = make_app(max_payload=1000), 0

    @hf.job(result="1h")
    async def bad() -> object:
        nonlocal runs
        runs += 1
        return value

    handle = await bad.enqueue()
    await drain(hf)
    with pytest.raises(JobFailed, match=rf"the result of bad cannot be stored: .*{problem}"):
        await handle.result(timeout=0)
    assert runs == 1


async def test_a_result_is_kept_for_its_time_and_then_removed(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def quick() -> int:
        return 1

    handle = await quick.enqueue()
    await drain(hf)
    await pass_time(hf, timedelta(minutes=59))
    assert await handle.result(timeout=0) == 1
    await hf.store.run(forget_results())
    assert await kept(hf) == 1
    await pass_time(hf, timedelta(minutes=2))
    with pytest.raises(NotFound, match="quick is done, and keeps results for 1h"):
        await handle.result(timeout=0)
    await hf.store.run(forget_results())
    assert await kept(hf) == 0


async def prune(hf: Holdfast) -> None:
    await pass_time(hf, timedelta(hours=2))
    top = first_id(await hf.store.run(clock()) + timedelta(days=1))
    assert await hf.store.run(prune_deliveries(FROM_THE_START, top, timedelta(hours=1))) == (1, None)


async def test_a_result_outlives_its_delivery_unless_it_is_of_an_earlier_cycle(hf: Holdfast) -> None:
    @hf.job(result="1d")
    async def quick() -> int:
        return 1

    handle = await quick.enqueue()
    await drain(hf)
    await prune(hf)
    assert await handle.result(timeout=0) == 1
    assert await hf.result(handle.id, timeout=0) == 1
    handle = await quick.enqueue()
    await drain(hf)
    await query(hf, "update {hf}delivery set fence = fence + 1")
    await prune(hf)
    with pytest.raises(NotFound, match="check the id and whether it was pruned"):
        await handle.result(timeout=0)


async def test_an_events_result_needs_its_consumer(hf: Holdfast) -> None:
    @hf.consumer("order.placed", result="1h")
    async def bill(order: dict[str, Any]) -> int:
        return int(order["n"])

    @hf.consumer("order.placed")
    async def mail(order: dict[str, Any]) -> None: ...

    published = await hf.publish("order.placed", {"n": 7}, conn=None)
    await drain(hf)
    assert await hf.result(published.id, consumer="bill") == 7
    with pytest.raises(ConfigurationError, match=r"several consumers; name one, such as consumer="):
        await hf.result(published.id)
    with pytest.raises(NotFound, match="mail is done and keeps no results"):
        await hf.result(published.id, consumer="mail")
    with pytest.raises(NotFound, match="it has deliveries for"):
        await hf.result(published.id, consumer="bil")
    with pytest.raises(NotFound, match="commit the transaction"):
        await hf.result(uuid4())


async def test_handlers_without_results_store_none(hf: Holdfast) -> None:
    @hf.job(keep_runs=True)
    async def plain() -> int:
        return 1

    @hf.job(result="1h", keep_runs=True)
    async def both() -> int:
        return 2

    handle, other = await plain.enqueue(), await both.enqueue()
    await drain(hf)
    with pytest.raises(ConfigurationError, match="plain keeps no results; declare it with result="):
        await handle.result()
    assert await other.result(timeout=0) == 2
    assert (await only(hf, "plain")).status is Status.DELIVERED
    assert [run.outcome for run in await run_records(hf, "both")] == ["succeeded"]
    assert await kept(hf) == 1


@pytest.mark.parametrize("case", ["queue", "limit", "slot"])
async def test_a_handler_does_not_wait_for_what_it_holds_up(make_app: MakeApp, case: str) -> None:
    hf = make_app(queues=[Queue("mail", limit=Limit(2))])
    limited: dict[str, Any] = {"limit": Limit(3)} if case == "limit" else {}
    queue = "mail" if case == "queue" else "default"

    @hf.job(queue=queue, result="1h")
    async def child() -> None: ...

    @hf.job(queue=queue, result="1h", retry=ONCE, **limited)
    async def parent(depth: int) -> None:
        handle = await (parent.enqueue(depth + 1) if case == "limit" else child.enqueue())
        await handle.result(timeout="10s")

    handle = await parent.enqueue(0)
    async with working(hf, concurrency=1 if case == "slot" else 10):
        with pytest.raises(JobFailed, match=r"parent cannot wait for the result of .*another queue") as failed:
            await handle.result(timeout="15s")
    assert failed.value.error_type == f"{ConfigurationError.__module__}.ConfigurationError"


@pytest.mark.parametrize("case", ["queue", "limit", "slot"])
async def test_a_handler_does_not_wait_for_a_group_that_it_holds_up(make_app: MakeApp, case: str) -> None:
    hf = make_app(queues=[Queue("mail", limit=Limit(2))])
    limited: dict[str, Any] = {"limit": Limit(3)} if case == "limit" else {}
    queue = "mail" if case == "queue" else "default"

    @hf.job(queue=queue, result="1h")
    async def child() -> None: ...

    @hf.job(queue=queue, result="1h", retry=ONCE, **limited)
    async def parent(depth: int) -> None:
        call = parent.call(depth + 1) if case == "limit" else child.call()
        group = await hf.group([call]).then(report).enqueue()
        await group.result(timeout="10s")

    @hf.job(result="1h", queue="reports")
    async def report(results: list[None]) -> None: ...

    handle = await parent.enqueue(0)
    async with working(hf, concurrency=1 if case == "slot" else 10):
        with pytest.raises(JobFailed, match=r"parent cannot wait for the result of group .*another queue") as failed:
            await handle.result(timeout="15s")
    assert failed.value.error_type == f"{ConfigurationError.__module__}.ConfigurationError"


async def test_a_job_does_not_wait_for_its_own_group(hf: Holdfast) -> None:
    @hf.job(result="1h", retry=ONCE)
    async def member() -> None:
        await groups[0].result(timeout="10s")

    @hf.job(result="1h")
    async def report(results: list[None]) -> None: ...

    groups = [await hf.group([member.call()]).then(report).enqueue()]
    async with working(hf):
        with pytest.raises(JobFailed):
            await groups[0].result(timeout="15s")
    (failed,) = await groups[0].members()
    assert failed.error is not None
    assert "because member is a job of the group; let the job in .then(...) use the result" in failed.error


@pytest.mark.parametrize("of", ["job", "group"])
async def test_a_handler_that_binds_its_own_event_id_may_wait_for_a_result(hf: Holdfast, of: str) -> None:
    @hf.job(result="1h")
    async def child() -> int:
        return 7

    @hf.job(result="1h", retry=ONCE)
    async def parent() -> int:
        bind_contextvars(event_id="evt_1NG8Du2eZvKYlo2C")
        call = child.enqueue() if of == "job" else child.then(report).enqueue()
        return int(await (await call).result(timeout="10s"))

    @hf.job(result="1h")
    async def report(result: int) -> int:
        return result

    handle = await parent.enqueue()
    async with working(hf):
        assert await handle.result(timeout="15s") == 7


async def test_a_handler_may_wait_for_a_job_that_can_start(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def child(n: int) -> int:
        return n + 1

    @hf.job(result="1h")
    def parent(n: int) -> int:
        return int(child.sync.enqueue(n).sync.result(timeout="10s"))

    handle = await parent.enqueue(1)
    async with working(hf):
        assert await handle.result(timeout="15s") == 2


async def test_a_wait_ends_when_the_app_is_closed(make_app: MakeApp) -> None:
    hf = make_app()

    @hf.job(result="1h")
    async def later() -> None: ...

    handle = await later.using(delay="1h").enqueue()
    wait = asyncio.create_task(handle.result())
    await eventually(lambda: "holdfast-results" in [thread.name for thread in threading.enumerate()])
    await asyncio.sleep(0.05)
    await hf.close()
    with pytest.raises(Exception, match="the app was closed"):
        await wait


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"result": 0}, "result is 0; give a duration above zero"),
        ({"result": "soon"}, "result 'soon'"),
        ({"result": "1h", "dedupe": True}, "a run that dedupe= skips has no result"),
        ({"result": "1h", "batch": 10}, "a batch handler returns one value"),
        ({"result_ttl": 5}, "did you mean|give result='1h'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    hf = Holdfast("sqlite:///shop.db")
    with pytest.raises(ConfigurationError, match=problem):
        hf.consumer("order.placed", name="bill", **options)(lambda order: order)
    with pytest.raises(ConfigurationError, match="a rebuild runs it again"):
        hf.projector("order.placed", name="p", result="1h")(lambda order: None)
    with pytest.raises(ConfigurationError, match="direct=True stores no successes"):
        hf.consumer("order.placed", source=redis.stream("s", group="g"), direct=True, result="1h")


async def test_operators_see_the_result_without_declared_secrets(make_app: MakeApp) -> None:
    hf = make_app(redact=["card"])

    @hf.job(result="1h")
    async def pay(card: str) -> dict[str, Any]:
        return {"card": "4242", "note": f"paid with {card}", "total": 7}

    handle = await pay.enqueue("4111-1111")
    await drain(hf)
    detail = await hf.ops.job(handle.id)
    assert detail.result is not None
    assert orjson.loads(detail.result.result) == {
        "card": "[redacted]",
        "note": "paid with [redacted]",
        "total": 7,
    }
    assert orjson.loads(dumps(detail))["result"]["result"]["total"] == 7
    text = "".join(part for line in lines(detail) for part, _ in line)
    assert '"total":7' in text.replace(" ", "")
    assert "4111" not in text
    assert await handle.result() == {"card": "4242", "note": "paid with 4111-1111", "total": 7}


@pytest.mark.long
def test_the_program_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "handle.md").read_text()
    ((program, printed),) = re.findall(r"```python\n# report\.py\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    (tmp_path / "report.py").write_text(program)
    done = subprocess.run([sys.executable, "report.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
