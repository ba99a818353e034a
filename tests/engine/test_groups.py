"""Groups and chains: the job after them runs once, with their results, also when they fail."""

import asyncio
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Cancel,
    ConfigurationError,
    Context,
    GroupSummary,
    Holdfast,
    JobFailed,
    Limit,
    NotFound,
    RetryPolicy,
)
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import cancel, discard, replay
from holdfast.stores.groups.query import GroupState
from tests.support.apps import MakeApp
from tests.support.worker import all_of, drain, eventually, only, query, working
from tests.workflows.chaos_worker import connect

ONCE = RetryPolicy.none()


class Album:
    """Jobs whose failures the test controls, and a report that notes what it received."""

    def __init__(self, hf: Holdfast) -> None:
        self.broken: set[int] = set()
        self.received: list[Any] = []

        @hf.job(result="1h", retry=ONCE)
        async def resize(n: int) -> int:
            if n in self.broken:
                raise ValueError(f"image {n} is broken")
            return n * n

        @hf.job(result="1h", retry=ONCE)
        async def report(sizes: list[int | None], title: str = "") -> str:
            self.received.append((sizes, title))
            return f"{title}{sum(size or 0 for size in sizes)}"

        @hf.job(result="1h", retry=ONCE)
        async def summarise(summary: GroupSummary) -> dict[str, int]:
            self.received.append(summary)
            return {"done": summary.done, "failed": summary.failed, "cancelled": summary.cancelled}

        self.resize, self.report, self.summarise = resize, report, summarise


async def test_the_job_after_a_group_gets_the_results_in_order_once(hf: Holdfast, make_app: MakeApp) -> None:
    album = Album(hf)
    group = hf.group([album.resize.call(n) for n in range(30)]).then(album.report, "total ").then(_length(hf))
    async with working(hf):
        handle = await group.enqueue()
        assert await handle.result(timeout="10s") == len(f"total {sum(n * n for n in range(30))}")
    assert album.received == [([n * n for n in range(30)], "total ")]
    progress = await hf.group_handle(handle.id).progress()
    assert (progress.state, progress.total, progress.done, progress.left) == (GroupState.DONE, 32, 32, 0)
    assert progress.label == "30 jobs of resize, then report, then length"
    assert [(one.stage, one.job, one.total) for one in progress.stages] == [
        (0, "resize", 30),
        (1, "report", 1),
        (2, "length", 1),
    ]
    (member,) = await handle.members(start=29)
    assert (member.position, member.job, member.result, member.status) == (29, "resize", 841, Status.DELIVERED)
    # Another process finds it by its id.
    assert await asyncio.to_thread(make_app().group_handle(handle.id).sync.result, timeout=1) == 10


def _length(hf: Holdfast) -> Any:
    @hf.job(result="1h")
    def length(text: str) -> int:
        return len(text)

    return length


async def test_a_chain_passes_results_and_arguments(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def charge(amount: int) -> int:
        return amount + 1

    @hf.job(result="1h")
    def receipt(ctx: Context, paid: int, currency: str, *, copies: int = 1) -> dict[str, Any]:
        return {"paid": paid, "currency": currency, "copies": copies}

    @hf.job(result="1h")
    async def archive() -> str:
        return "archived"

    chain = charge.then(receipt, "EUR", copies=2)
    async with working(hf):
        handle = await chain.enqueue(1)
        assert await handle.result(timeout="10s") == {"paid": 2, "currency": "EUR", "copies": 2}
        blocking = await asyncio.to_thread(chain.then(archive).sync.enqueue, 5)
        assert await asyncio.to_thread(blocking.sync.result, timeout=10) == "archived"
        called = await charge.call(7).then(receipt, "USD").enqueue()
        assert (await called.result(timeout="10s"))["paid"] == 8
    assert (await blocking.progress()).label == "charge, then receipt, then archive"


@pytest.mark.parametrize("on_failure", ["dead", "skip", "run"])
async def test_failed_members_decide_about_the_job_after_them(hf: Holdfast, on_failure: str) -> None:
    album = Album(hf)
    album.broken = {3, 4}
    handle = (
        await hf.group([album.resize.call(n) for n in range(6)], on_failure=on_failure).then(album.report).enqueue()
    )
    async with working(hf):
        if on_failure == "run":
            assert await handle.result(timeout="10s") == "30"
            assert album.received == [([0, 1, 4, None, None, 25], "")]
        else:
            with pytest.raises(JobFailed, match=r"jobs before it in group .*: 2 failed, of 6") as failure:
                await handle.result(timeout="10s")
            assert failure.value.state == {"dead": "failed", "skip": "cancelled"}[on_failure]
            assert album.received == []
        progress = await handle.progress()
        assert progress.state is (GroupState.DONE if on_failure == "run" else GroupState.FAILED)
        assert (progress.stages[0].done, progress.stages[0].failed) == (4, 2)
        # Replayed members succeed; the job after them does not run a second time.
        album.broken.clear()
        dead = [one.id for one in await all_of(hf, "resize") if one.status is Status.FAILED]
        assert len(await hf.store.run(replay(dead, "ada", "fixed"))) == 2
        await eventually(lambda: _left(hf, handle.id, 0))
        await asyncio.sleep(0.1)
        assert len(album.received) == (1 if on_failure == "run" else 0)
        if on_failure == "dead":
            await hf.store.run(replay([(await only(hf, "report")).id], "ada", "fixed"))
            assert await handle.result(timeout="10s") == "55"
            assert album.received == [([0, 1, 4, 9, 16, 25], "")]


async def _left(hf: Holdfast, id: Any, left: int) -> bool:
    return (await hf.group_handle(id).progress()).left == left


async def test_a_replayed_job_after_a_group_waits_for_members_and_then_runs_in_spite_of_failures(hf: Holdfast) -> None:
    album = Album(hf)
    album.broken = {0, 1}
    handle = await hf.group([album.resize.call(n) for n in range(3)]).then(album.report).enqueue()
    await drain(hf)
    album.broken = {0}
    everything = [one.id for one in await all_of(hf) if one.status is Status.FAILED]
    assert len(everything) == 3
    await hf.store.run(replay(everything, "ada", "fixed one of them"))
    await drain(hf)
    assert album.received == [([None, 1, 4], "")]
    assert (await handle.progress()).failed == 1


async def test_a_member_that_was_replayed_before_the_end_is_waited_for(hf: Holdfast) -> None:
    album, gate = Album(hf), asyncio.Event()
    album.broken = {0}

    @hf.job(result="1h")
    async def slow() -> int:
        await gate.wait()
        return 7

    handle = await hf.group([album.resize.call(0), slow.call()]).then(album.report).enqueue()
    async with working(hf):
        dead = await eventually(lambda: _dead(hf))
        album.broken.clear()
        await hf.store.run(replay([dead], "ada", "fixed"))
        await eventually(lambda: _left(hf, handle.id, 2))
        gate.set()
        assert await handle.result(timeout="10s") == "7"
    assert album.received == [([0, 7], "")]


async def _dead(hf: Holdfast) -> Any:
    return next((one.id for one in await all_of(hf, "resize") if one.status is Status.FAILED), None)


async def test_discarded_and_cancelled_members_count_as_not_done(hf: Holdfast) -> None:
    album = Album(hf)
    album.broken = {1}

    @hf.job(result="1h")
    async def later() -> int:
        raise Cancel("not needed")

    calls = [album.resize.call(1), album.resize.call(2), later.call(), album.resize.using(delay="1h").call(3)]
    handle = await hf.group(calls, on_failure="run").then(album.summarise).enqueue()
    async with working(hf):
        await hf.store.run(discard([await eventually(lambda: _dead(hf))], "ada", "not needed"))
        await eventually(lambda: _left(hf, handle.id, 2))
        assert album.received == []
        members = await handle.members()
        await hf.store.run(cancel([members[3].delivery_id], "ada", "not needed"))
        assert await handle.result(timeout="15s") == {"done": 1, "failed": 0, "cancelled": 3}
    assert [one.discarded for one in await handle.members()] == [True, False, True, True]


async def test_a_cancelled_group_runs_nothing_more(hf: Holdfast) -> None:
    album = Album(hf)
    handle = await hf.group([album.resize.using(delay="1h").call(n) for n in range(4)]).then(album.report).enqueue()
    assert await handle.cancel("wrong album", actor="ada") == 5
    assert await asyncio.to_thread(handle.sync.cancel) == 0
    await drain(hf)
    assert album.received == []
    progress = await handle.progress()
    assert (progress.state, progress.cancelled, progress.left) == (GroupState.CANCELLED, 5, 0)
    with pytest.raises(JobFailed, match="was cancelled: wrong album"):
        await handle.result(timeout="1s")
    entries = await hf.ops.audit(target=("group", str(handle.id)))
    assert [(one.actor, one.action, one.reason, one.detail) for one in entries[-1:]] == [
        ("ada", "cancel", "wrong album", {"cancelled": 5})
    ]
    with pytest.raises(NotFound, match="group"):
        await hf.group_handle((await only(hf, "report")).id).cancel()


async def test_a_key_makes_a_group_once_and_existing_jobs_are_waited_for(hf: Holdfast) -> None:
    @hf.command(key="pay:{order}", result="1h")
    async def pay(order: int) -> int:
        return order

    album = Album(hf)
    await pay.enqueue(1)
    await drain(hf)
    group = hf.group([pay.call(1), pay.call(2), pay.call(2)]).then(album.report).using(key="album:1")
    first, again = await group.enqueue(), await group.enqueue()
    assert (first.created, again.created, first.id == again.id) == (True, False, True)
    await drain(hf)
    assert album.received == [([1, 2, 2], "")]
    assert len(await all_of(hf, "pay")) == 2


async def test_empty_and_single_groups(hf: Holdfast) -> None:
    album = Album(hf)
    empty = await hf.group([]).then(album.report).enqueue()
    one = await hf.group([album.resize.call(3)]).then(album.report).enqueue()
    alone = await hf.group([album.resize.call(4), album.resize.call(5)]).enqueue()
    await drain(hf)
    assert await empty.result(timeout=0) == "0"
    assert await one.result(timeout=0) == "9"
    assert sorted(map(str, album.received)) == ["([9], '')", "([], '')"]
    with pytest.raises(ConfigurationError, match=r"add one with \.then"):
        await alone.result()
    assert [member.result for member in await asyncio.to_thread(alone.sync.members)] == [16, 25]
    assert (await asyncio.to_thread(alone.sync.progress)).state is GroupState.DONE
    with pytest.raises(ConfigurationError, match="no jobs"):
        await hf.group([]).enqueue()


async def test_results_that_are_too_large_make_a_dead_letter_that_names_the_remedy(make_app: MakeApp) -> None:
    hf = make_app(max_payload=2000)

    @hf.job(result="1h")
    async def draw(n: int) -> str:
        return "x" * 1000

    @hf.job(result="1h")
    async def gather(texts: list[str]) -> int:
        return len(texts)

    handle = await hf.group([draw.call(n) for n in range(3)]).then(gather).enqueue()
    await drain(hf)
    with pytest.raises(JobFailed, match=r"exceed 2000 bytes.*GroupSummary"):
        await handle.result(timeout="1s")


async def test_a_retry_of_the_job_after_a_group_does_not_wait_again(hf: Holdfast) -> None:
    album, runs = Album(hf), []

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=2))
    async def flaky(sizes: list[int | None]) -> int:
        runs.append(sizes)
        if len(runs) == 1:
            # An operator runs a member again in the meantime.
            (member,) = await all_of(hf, "resize")
            await hf.store.run(replay([member.id], "ada", "again", rerun=True))
            await hf.store.run(cancel([member.id], "ada", "stop"))
            raise ConnectionError("once")
        return len(sizes)

    handle = await hf.group([album.resize.call(2)]).then(flaky).enqueue()
    await drain(hf)
    assert runs == [[4], [None]]
    assert (await handle.progress()).stages[1].done == 1


async def test_messages_of_a_member_do_not_belong_to_its_group(hf: Holdfast) -> None:
    album = Album(hf)

    @hf.job()
    async def outer(ctx: Context) -> None:
        await album.resize.enqueue(1)

    await hf.group([outer.call()]).enqueue()
    await drain(hf)
    rows = await query(hf, "select type, headers from {hf}message order by id")
    assert ["holdfast_group" in str(headers) for _, headers in rows] == [True, False]


async def test_wrong_declarations_are_refused_with_the_remedy(hf: Holdfast, make_app: MakeApp) -> None:
    album = Album(hf)

    @hf.job()
    async def silent(n: int) -> None: ...

    @hf.command(key="c:{n}")
    async def once(n: int) -> None: ...

    @hf.job(order_by="n")
    async def ordered(n: int) -> None: ...

    @hf.job(limit=Limit(1, by="n"))
    async def limited(n: list[int]) -> None: ...

    @make_app().job()
    async def foreign(n: list[int]) -> None: ...

    resize, report = album.resize, album.report
    wrong: Any = hf.group
    untyped: Any = resize.call
    for call, problem in (
        (lambda: wrong(resize.call(1)), "takes a list of calls, not JobCall"),
        (lambda: wrong([resize]), "item 0 of hf.group is resize without its arguments"),
        (lambda: wrong([3]), "item 0 of hf.group is of type int"),
        (lambda: wrong([], on_failure="skipp"), "did you mean 'skip'"),
        (lambda: hf.group([resize.using(conn=object()).call(1)]), "one transaction for all"),
        (lambda: hf.group([silent.call(1)]).then(report), "silent keeps no result; declare silent with result='1h'"),
        (lambda: silent.then(report), "silent keeps no result"),
        (lambda: resize.then(once), "command once cannot run after other jobs"),
        (lambda: resize.then(ordered), "order_by= or debounce="),
        (lambda: resize.then(limited), "flow control by n"),
        (lambda: resize.then(report.using(delay="1h")), "leave delay= out"),
        (lambda: wrong([]).then(print), "then() takes a job, and this value is of type builtin_function_or_method"),
        (lambda: hf.group([resize.call(1)]).then(foreign)._build(), "belongs to another app"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert problem in str(refused.value)
    for misfit in (lambda: untyped("x", 2), lambda: resize.then(report, 1, 2)):
        with pytest.raises(TypeError, match="too many positional arguments"):
            misfit()
    with pytest.raises(Exception, match="title") as noted:
        await hf.group([resize.call(1)]).then(report, title=[1]).enqueue()
    with pytest.raises(Exception, match="resize takes n") as noted:
        await hf.group([resize.call(1), untyped("x")]).enqueue()
    assert "call 1 of the group" in noted.value.__notes__[0]
    assert await all_of(hf) == []


@pytest.mark.long
def test_the_program_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "groups.md").read_text()
    ((program, printed),) = re.findall(r"```python\n# album\.py\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    (tmp_path / "album.py").write_text(program)
    done = subprocess.run([sys.executable, "album.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr


async def test_a_group_exists_if_and_only_if_the_transaction_of_its_caller_commits(hf: Holdfast, dsn: str) -> None:
    album = Album(hf)
    group = hf.group([album.resize.call(n) for n in range(3)]).then(album.report)
    await hf.publish("started", {}, conn=None)  # migrates and registers, which the caller's transaction cannot wait for
    with closing(connect(dsn)) as conn:
        lost = group.using(conn=conn).sync.enqueue()
        conn.rollback()
        kept = group.using(conn=conn).sync.enqueue()
        conn.commit()
    await drain(hf)
    assert await kept.result() == "5"
    assert album.received == [([0, 1, 4], "")]
    with pytest.raises(NotFound):
        await lost.progress()
