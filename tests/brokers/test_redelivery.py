"""A scripted broker that redelivers records, loses connections and fails to acknowledge."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from holdfast.brokers.intake import Intake
from holdfast.brokers.protocol import Lag, Record, Subscription
from holdfast.core.errors import BrokerUnavailable
from tests.support.worker import Log, eventually, logged

Script = list[list[Record] | BaseException]


def record(id: str | None, receipt: object = None) -> Record:
    return Record(stream="payments", id=id, body=b"{}", receipt=receipt)


class Scripted:
    """A source whose connections deliver the records of a script, then nothing."""

    name, ack_timeout = "script:payments/shop", 0.3

    def __init__(self, *scripts: Script, acks: Sequence[Exception | None] = ()) -> None:
        self._scripts, self._acks = list(scripts), list(acks)
        self.opened = self.asked = 0
        self.settled: list[tuple[str, int, object]] = []
        self.holds_first: asyncio.Event | None = None
        self.lag: Lag | Exception | None = Lag(waiting=0)
        """None for one that never comes."""
        self.lag_requests = 0

    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Subscription]:
        self.opened += 1
        yield _Connection(self, self.opened, self._scripts.pop(0) if self._scripts else [])

    async def durability_warnings(self) -> list[str]:
        return []

    def settle(self, how: str, connection: int, records: Sequence[Record]) -> None:
        if how == "ack" and self._acks and (error := self._acks.pop(0)) is not None:
            raise error
        self.settled += [(how, connection, one.receipt) for one in records]


class _Connection:
    def __init__(self, source: Scripted, number: int, script: Script) -> None:
        self._source, self._number, self._script = source, number, script

    async def fetch(self, limit: int, wait: float) -> Sequence[Record]:
        self._source.asked += 1
        await asyncio.sleep(0)
        if not self._script:
            await asyncio.sleep(wait)
            return []
        following = self._script.pop(0)
        if isinstance(following, BaseException):
            raise following
        return following

    async def ack(self, records: Sequence[Record]) -> None:
        if self._number == 1 and self._source.holds_first is not None:
            await self._source.holds_first.wait()
        self._source.settle("ack", self._number, records)

    async def release(self, records: Sequence[Record]) -> None:
        self._source.settle("release", self._number, records)

    async def extend(self, records: Sequence[Record]) -> None:
        self._source.settle("extend", self._number, records)

    async def lag(self) -> Lag:
        self._source.lag_requests += 1
        if self._source.lag is None:
            await asyncio.sleep(3600)
        if isinstance(self._source.lag, Exception):
            raise self._source.lag
        assert self._source.lag is not None
        return self._source.lag


class SlowHandler:
    """Handles records one at a time, and finishes them when `go` is set."""

    batch_size, max_in_flight, is_paused = 1, 10, False

    def __init__(self) -> None:
        self.received: list[str | None] = []
        self.go = asyncio.Event()
        self.fails = 0

    async def ready(self) -> bool:
        return True

    async def handle(self, records: Sequence[Record]) -> None:
        self.received += [one.id for one in records]
        await self.go.wait()
        if self.fails:
            self.fails -= 1
            raise RuntimeError("unexpected")


@asynccontextmanager
async def running_intake(source: Scripted, handler: SlowHandler, *, until_idle: bool = True) -> AsyncIterator[Intake]:
    async def report(lag: Lag | None, problem: str | None) -> None: ...

    stop = asyncio.Event()
    intake = Intake(source, "settle", handler, report, grace=0.1, until_idle=until_idle)
    task = asyncio.create_task(intake.run(stop))
    try:
        yield intake
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


def out() -> BrokerUnavailable:
    return BrokerUnavailable("script", "gone")


async def test_a_record_redelivered_while_in_progress_is_not_handled_twice(log: Log) -> None:
    source = Scripted([[record("1", "first")], out()], [[record("1", "second")]])
    handler = SlowHandler()
    async with running_intake(source, handler):
        await eventually(lambda: ("extend", 2, "second") in source.settled)
        handler.go.set()
        await eventually(lambda: ("ack", 2, "second") in source.settled)
    assert handler.received == ["1"]
    # A receipt is worth something to the connection that gave it, and to no other.
    assert [one for one in source.settled if one[0] == "ack"] == [("ack", 2, "second")]
    assert len(logged(log, "broker unavailable")) == 1
    assert len(logged(log, "broker reconnected")) == 1


async def test_records_without_an_id_are_never_taken_for_one(log: Log) -> None:
    source = Scripted([[record(None, "a"), record(None, "b")]])
    handler = SlowHandler()
    async with running_intake(source, handler):
        handler.go.set()
        await eventually(lambda: len(source.settled) == 2)
    assert handler.received == [None, None]


async def test_a_failed_acknowledgement_opens_a_new_connection(log: Log) -> None:
    source = Scripted([[record("1", "first")]], [[record("1", "again")]], acks=[out()])
    handler = SlowHandler()
    handler.go.set()
    async with running_intake(source, handler):
        await eventually(lambda: ("ack", 2, "again") in source.settled)
    # What was done is not done again: a handler may have run straight from the stream.
    assert handler.received == ["1"]


@pytest.mark.parametrize("refusal", [out(), None])
async def test_a_record_redelivered_during_its_acknowledgement_is_acknowledged_too(
    log: Log, refusal: Exception | None
) -> None:
    source = Scripted([[record("1", "first")], [], [], [], out()], [[record("1", "again")]], acks=[refusal])
    source.holds_first = asyncio.Event()
    handler = SlowHandler()
    handler.go.set()
    async with running_intake(source, handler):
        # All of the first connection's fetches, and the second's one after the record.
        await eventually(lambda: source.asked >= 7)
        source.holds_first.set()
        await eventually(lambda: ("ack", 2, "again") in source.settled)
    assert handler.received == ["1"]


async def test_what_ends_on_a_connection_that_is_gone_is_not_acknowledged_on_another(log: Log) -> None:
    source = Scripted([[record("1", "first")], out()], [[], [], [], [record("1", "again")]])
    handler = SlowHandler()
    async with running_intake(source, handler):
        await eventually(lambda: source.opened == 2)
        handler.go.set()
        await eventually(lambda: ("ack", 2, "again") in source.settled)
    assert [one for one in source.settled if one[0] == "ack"] == [("ack", 2, "again")]
    assert handler.received == ["1"]
    assert source.opened == 2


async def test_a_record_that_could_not_be_handled_is_released_not_acknowledged(log: Log) -> None:
    source = Scripted([[record("1", "first")]])
    handler = SlowHandler()
    handler.fails = 1
    handler.go.set()
    async with running_intake(source, handler):
        await eventually(lambda: any(how == "release" for how, *_ in source.settled))
    assert ("release", 1, "first") in source.settled
    assert not [one for one in source.settled if one[0] == "ack"]


@pytest.mark.parametrize("error", [ValueError("a driver's own"), asyncio.CancelledError()])
async def test_an_unexpected_error_is_treated_like_an_outage(log: Log, error: BaseException) -> None:
    source = Scripted([error], [[record("1", "first")]])
    handler = SlowHandler()
    handler.go.set()
    async with running_intake(source, handler):
        await eventually(lambda: ("ack", 2, "first") in source.settled)
    assert logged(log, "broker unavailable")
    assert bool(logged(log, "intake failed")) == isinstance(error, ValueError)


async def test_a_worker_that_is_to_end_when_idle_waits_for_a_broker_only_so_long(log: Log) -> None:
    scripts: list[Script] = [[out()] for _ in range(50)]
    async with running_intake(Scripted(*scripts), SlowHandler()) as intake:
        await eventually(lambda: logged(log, "broker unavailable"))
        assert not intake.idle(60.0)
        assert intake.idle(0.0)


async def test_no_more_is_fetched_than_may_be_in_flight(log: Log) -> None:
    source = Scripted([[record(str(n), n) for n in range(4)]])
    handler = SlowHandler()
    handler.max_in_flight = 4
    async with running_intake(source, handler) as intake:
        await eventually(lambda: len(handler.received) == 4)
        asked = source.asked
        await asyncio.sleep(0.3)
        assert source.asked == asked
        assert not intake.idle(60.0)
        handler.go.set()
        await eventually(lambda: source.asked > asked)
        await eventually(lambda: intake.idle(60.0))


@pytest.mark.parametrize("error", [out(), ValueError("a driver's own")])
async def test_a_lag_that_the_broker_does_not_answer_never_ends_the_subscription(log: Log, error: Exception) -> None:
    source = Scripted([[], [], [record("1", "first")]])
    source.lag = error
    handler = SlowHandler()
    handler.go.set()
    async with running_intake(source, handler) as intake:
        await eventually(lambda: ("ack", 1, "first") in source.settled)
        requests = source.lag_requests
        await eventually(lambda: source.lag_requests > requests)
        assert not intake.idle(60.0), "how much waits is unknown"
        assert intake.idle(0.0)
        source.lag = Lag(waiting=0)
        await eventually(lambda: intake.idle(60.0))
    assert source.opened == 1
    assert not logged(log, "broker unavailable")


async def test_a_worker_that_runs_on_does_not_wait_for_the_lag_between_fetches(log: Log) -> None:
    source, handler = Scripted([[record("1", "first")]]), SlowHandler()
    source.lag = None
    handler.go.set()
    async with running_intake(source, handler, until_idle=False):
        await eventually(lambda: source.asked >= 3)
