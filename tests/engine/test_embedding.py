"""A worker inside an application: in its own loop, for its lifespan, as a program, until idle."""

import asyncio
import gc
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, RetryPolicy, Router
from holdfast.core.delivery import Status
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.deliveries.worker import workers
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, eventually, logged, options, query, statuses, working


async def test_a_worker_lives_in_the_applications_loop_with_its_other_tasks(hf: Holdfast) -> None:
    ticks: list[int] = []
    done = asyncio.Event()

    @hf.job()
    async def work() -> None:
        done.set()

    async def application() -> None:
        while not done.is_set():
            ticks.append(1)
            await asyncio.sleep(0.001)

    async with working(hf):
        ticking = asyncio.create_task(application())
        await work.enqueue()
        await asyncio.wait_for(ticking, 20)
    assert ticks


async def test_a_lifespan_runs_a_worker_when_given_options(hf: Holdfast) -> None:
    @hf.job()
    async def work() -> None: ...

    async with hf.lifespan(object(), workers=options()):
        await work.enqueue()
        await eventually(lambda: _all(hf, Status.DELIVERED))
    assert await hf.store.run(workers()) == []


async def test_a_lifespan_without_options_opens_the_store_and_runs_nothing(hf: Holdfast) -> None:
    @hf.job()
    async def work() -> None: ...

    async with hf.lifespan():
        await work.enqueue()
        assert await hf.store.run(workers()) == []
    assert await statuses(hf) == [Status.PENDING]


async def test_an_application_is_notified_at_once_when_its_worker_has_failed(hf: Holdfast, log: Log) -> None:
    """And again when it ends, by the exception."""

    class Broken(Exception): ...

    async def broken(*_: object, **__: object) -> None:
        raise Broken("no worker today")

    hf.work = broken  # type: ignore[method-assign]
    with pytest.raises(Broken):  # noqa: PT012
        async with hf.lifespan(workers=options()):
            await asyncio.sleep(0)  # the worker fails
            await asyncio.sleep(0)  # and it is said
            lines = logged(log, "worker failed")
    assert len(lines) == 1


async def test_until_idle_waits_through_retry_waits_and_ignores_cron(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(retry=RetryPolicy.schedule([0.1, 0.1]))
    async def flaky(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")

    @hf.cron("* * * * *")
    async def minutely() -> None:
        seen.append(-1)

    await hf._runtime.registration.prepare()
    async with working(hf):
        await eventually(lambda: query(hf, "select 1 from {hf}schedule"))
    await query(hf, "update {hf}schedule set last_at = " + ("0" if hf.store.dialect.name == "sqlite" else "'epoch'"))
    await flaky.enqueue()
    await asyncio.to_thread(Holdfast.run, hf, until_idle=True, options=options())
    assert seen == [1, 2, 3]


async def test_until_idle_does_not_wait_for_what_is_due_after_the_limit(hf: Holdfast) -> None:
    @hf.job()
    async def later() -> None: ...

    await later.using(delay="10m").enqueue()
    await drain(hf)
    assert await statuses(hf) == [Status.PENDING]


async def test_until_idle_gives_up_on_work_that_it_may_not_claim(hf: Holdfast, log: Log) -> None:
    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    await query(hf, "update {hf}delivery set suspect = " + ("1" if hf.store.dialect.name == "sqlite" else "true"))
    await drain(hf, idle_limit=timedelta(milliseconds=200))
    assert logged(log, "worker stopped before idle")


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
def test_run_blocks_until_idle_and_works_without_a_loop(dsn: str) -> None:
    hf = Holdfast(dsn)
    ran: list[str] = []

    @hf.job()
    def work() -> None:
        ran.append(threading.current_thread().name)

    work.sync.enqueue()
    hf.run(until_idle=True, options=options())
    assert len(ran) == 1
    work.sync.enqueue()
    hf.run(until_idle=True, options=options())  # another loop, the same app
    assert len(ran) == 2


async def test_run_inside_a_loop_names_the_right_call(hf: Holdfast) -> None:
    with pytest.raises(TypeError, match=r"await hf\.work\(\.\.\.\)"):
        hf.run(until_idle=True)


async def test_handlers_of_a_router_run_and_its_jobs_can_be_enqueued(hf: Holdfast) -> None:
    router = Router()
    seen: list[object] = []

    @router.consumer("order.placed")
    async def billing(payload: object) -> None:
        seen.append(payload)

    @router.job()
    async def remind(name: str) -> None:
        seen.append(name)

    hf.include(router)
    await hf.publish("order.placed", {"n": 1}, conn=None)
    await remind.enqueue("ada")
    await drain(hf)
    assert sorted(map(str, seen)) == ["ada", "{'n': 1}"]


async def test_a_worker_that_starts_before_the_store_waits_for_it(
    postgres18: PostgresServer, postgres18_dsn: str, log: Log
) -> None:
    with Proxy(postgres18) as proxy:
        hf, direct = Holdfast(proxy.dsn(postgres18_dsn)), Holdfast(postgres18_dsn)
        for app in (hf, direct):

            @app.job(name="work")
            async def work() -> None: ...

        with proxy.away():
            async with working(hf):
                await eventually(lambda: logged(log, "store unavailable"))
        with pytest.raises(StoreUnavailable), proxy.away():
            await drain(hf)
        await direct.close()
        await hf.close()


PROGRAM = """
import time
from datetime import timedelta
from holdfast import Holdfast, WorkerOptions

hf = Holdfast("sqlite:///{path}")

@hf.job()
def stuck() -> None:
    print("the handler runs", flush=True)
    time.sleep(600)

stuck.sync.enqueue()
hf.run(options=WorkerOptions(grace=timedelta(seconds=1), poll=timedelta(milliseconds=20)))
print("the program is over", flush=True)
"""


def test_a_thread_that_never_ends_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    """The standard library's pool would join it at exit, for ten minutes here."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(path=tmp_path / "a.db")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        while "the handler runs" not in program.stdout.readline():
            assert program.poll() is None
        program.terminate()
        rest, _ = program.communicate(timeout=15)
        assert "the program is over" in rest
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()


async def test_two_apps_work_side_by_side_in_one_loop(hf: Holdfast, make_app: MakeApp) -> None:
    other = make_app()

    @hf.job()
    async def here() -> None: ...

    @other.job()
    async def there() -> None: ...

    await here.enqueue()
    await there.enqueue()
    async with working(hf), working(other):
        await eventually(lambda: _all(hf, Status.DELIVERED, 2))


async def _all(hf: Holdfast, status: Status, number: int = 1) -> bool:
    return await statuses(hf) == [status] * number


def test_a_program_that_only_works_looks_for_garbage_less_often_while_it_does(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'h.db'}")
    seen: list[tuple[int, int, int]] = []

    @hf.job()
    async def look() -> None:
        seen.append(gc.get_threshold())

    look.sync.enqueue()
    before = gc.get_threshold()
    hf.run(until_idle=True)
    assert seen[0][0] > before[0]
    assert gc.get_threshold() == before
