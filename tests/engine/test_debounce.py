"""Debounce end to end: publishers only insert, and the newest call of a key stands for all."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, Limit, Outage, Queue, RetryPolicy, event
from holdfast.core.delivery import Status
from holdfast.testing.harness import bind_app
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, eventually, logged, pass_time, query, working


async def test_many_calls_become_one_run_of_the_newest(make_app: MakeApp, log: Log) -> None:
    alerts: list[object] = []
    hf, seen = make_app(alerts=[alerts.append]), list[tuple[str, int]]()

    @hf.job(debounce="300ms", max_wait="5s", by="document_id")
    async def index(document_id: str, version: int) -> None:
        seen.append((document_id, version))

    for version in range(5):
        await index.enqueue("a", version)
    await index.enqueue("b", 1)
    await drain(hf)
    assert sorted(seen) == [("a", 4), ("b", 1)]
    found = await all_of(hf)
    assert sorted(d.status for d in found) == [Status.DELIVERED] * 2 + [Status.FAILED] * 4
    assert all((d.last_error or "").startswith("superseded by ") for d in found if d.discarded_at is not None)
    assert (alerts, logged(log, "dead letter")) == ([], [])
    assert (await hf.ops.stats()).failed == 0


async def test_a_key_that_is_never_quiet_runs_after_the_longest_wait(hf: Holdfast) -> None:
    runs: list[tuple[float, int]] = []

    @hf.job(debounce="1500ms", max_wait="2s", by="document_id")
    async def index(document_id: str, version: int) -> None:
        runs.append((time.monotonic(), version))

    started = time.monotonic()
    async with working(hf):
        version = 0
        while not runs and time.monotonic() < started + 20:
            version += 1
            await index.enqueue("a", version)
            await asyncio.sleep(0.05)
    # On a busy machine two calls may be half a second apart; a quiet time that is not much longer would pass.
    assert runs[0][0] - started > 1.9
    assert runs[0][1] > 5


async def test_a_consumer_of_events_and_a_job_without_a_key(hf: Holdfast) -> None:
    seen: list[Any] = []

    @hf.consumer("page.changed", debounce="200ms", by="site.id")
    async def publish_site(payload: dict[str, Any]) -> None:
        seen.append(payload["n"])

    @hf.job(debounce="200ms")
    async def rebuild(n: int) -> None:
        seen.append(f"rebuild {n}")

    for n in range(3):
        await hf.publish("page.changed", {"site": {"id": 1}, "n": n}, conn=None)
        await hf.publish("page.changed", {"site": {"id": 2}, "n": 10 + n}, conn=None, key=f"k{n}")
        await rebuild.enqueue(n)
    await drain(hf)
    assert sorted(map(str, seen)) == ["12", "2", "rebuild 2"]


async def test_calls_from_before_the_declaration_are_debounced_too(make_app: MakeApp) -> None:
    before = make_app()

    @before.job(name="index")
    async def old(document_id: str) -> None: ...

    for _ in range(3):
        await old.enqueue("a")
    hf, seen = make_app(), list[str]()

    @hf.job(debounce="200ms", by="document_id")
    async def index(document_id: str) -> None:
        seen.append(document_id)

    await index.enqueue("a")
    await drain(hf)
    assert seen == ["a"]


async def test_a_failed_run_is_retried_and_dies_like_any_other(hf: Holdfast) -> None:
    @hf.job(debounce="100ms", by="n", retry=RetryPolicy.fixed(0, attempts=2))
    async def index(n: int) -> None:
        raise ValueError("no")

    await index.enqueue(1)
    await drain(hf)
    (dead,) = await all_of(hf)
    assert (dead.status, dead.attempts, dead.dead) == (Status.FAILED, 2, True)


async def test_the_harness_drains_debounced_work_without_waiting(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(debounce="1h", max_wait="1d", by="key")
    async def index(key: str, n: int) -> None:
        seen.append(n)

    with bind_app(hf, hf.dsn) as harness:
        await index.enqueue("a", 1)
        await index.enqueue("a", 2)
        await harness.drain()
        assert seen == [2]


async def test_after_an_outage_the_newest_is_tried(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(debounce="100ms", by="key")
    async def index(key: str, n: int) -> None:
        seen.append(n)
        if len(seen) == 1:
            raise Outage("search")

    async with working(hf):
        await index.enqueue("a", 1)
        await eventually(lambda: query(hf, "select 1 from {hf}consumer where blocked_until is not null"))
        await index.enqueue("a", 2)
        await index.enqueue("a", 3)
        await pass_time(hf, timedelta(minutes=10), "consumer", "delivery")
        await eventually(lambda: 3 in seen, f"{seen}")
    assert seen == [1, 3]


@pytest.mark.parametrize("given", [{"limit": Limit(2)}, {"order_by": "n"}, {"fair_by": "n"}])
def test_other_flow_options_are_refused(hf: Holdfast, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be combined"):

        @hf.job(debounce="5s", **{"by": "n", **given})
        async def index(n: int) -> None: ...


def test_a_key_that_names_no_field_is_refused(hf: Holdfast) -> None:
    @event("edited")
    @dataclass
    class Edited:
        document_id: str

    with pytest.raises(ConfigurationError, match="did you mean 'document_id'"):

        @hf.job(debounce="5s", by="documnet_id")
        async def index(document_id: str) -> None: ...

    with pytest.raises(ConfigurationError, match="did you mean 'document_id'"):

        @hf.consumer(Edited, debounce="5s", by="documentid")
        async def refresh(edited: Edited) -> None: ...


def test_a_delay_of_one_call_is_refused(hf: Holdfast) -> None:
    @hf.job(debounce="5s", by="n")
    async def index(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="decides when it runs"):
        index.using(delay="1m")


def test_a_queue_with_a_limit_is_refused(sqlite_dsn: str) -> None:
    hf = Holdfast(sqlite_dsn, queues=[Queue("mail", limit=Limit(2))])

    @hf.job(debounce="5s", by="n", queue="mail")
    async def index(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="another queue="):
        index.sync.enqueue(1)
