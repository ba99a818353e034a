"""Breakers on every kind of circuits, in both colours; then what only one of them does."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import LogCapture

from holdfast import (
    CircuitBreaker,
    CircuitOpen,
    ConfigurationError,
    InvalidName,
    MemoryCircuits,
    Outage,
    RedisCircuits,
    ServiceRefused,
    StoreCircuits,
    TerminalError,
)
from holdfast.core.circuit import Circuit, CircuitState, Result
from holdfast.outbound.breaker import classify_failure
from holdfast.outbound.circuits import CircuitStore
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.tables import empty

KINDS = ["memory", "redis", "sqlite", "postgres18"]


class Shared:
    """One place for circuits, as several processes would open it, each for itself."""

    def __init__(self, open: Callable[[], CircuitStore]) -> None:
        self.open = open

    def breaker(self, name: str = "mail", **options: Any) -> CircuitBreaker:
        return CircuitBreaker(name, self.open(), **{"threshold": 3, "cooldown": "5m", "jitter": 0, **options})


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path, database) -> Iterator[Shared]:
    made: list[Any] = []

    def kept(thing: Any) -> Any:
        made.append(thing)
        return thing

    match request.param:
        case "memory":
            memory = MemoryCircuits()
            yield Shared(lambda: memory)
        case "redis":
            server: RedisServer = request.getfixturevalue("redis")
            prefix = f"test:{time.monotonic_ns()}"
            yield Shared(lambda: kept(RedisCircuits(server.url, prefix)))
            for one in made:
                one.close_sync()
        case "sqlite":
            path = tmp_path / "breakers.db"
            kept(SqliteStore(path)).migrate()
            yield Shared(lambda: StoreCircuits(kept(SqliteStore(path))))
            for one in made:
                one.close_sync()
        case _:
            from holdfast.stores.postgres.store import PostgresStore

            postgres: PostgresServer = request.getfixturevalue(request.param)
            dsn = database(postgres)
            yield Shared(lambda: StoreCircuits(kept(PostgresStore(dsn))))
            for one in made:
                one.close_sync()
            empty(dsn)


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    """So many calls that are let through and fail; the one that opens the circuit says so."""
    for _ in range(times):
        permit = breaker.sync.admit()
        breaker.sync.settle(permit, Result.FAILED, "ConnectionError: down")


def test_what_one_process_learns_all_know(shared: Shared) -> None:
    one, other = shared.breaker(), shared.breaker()
    fail(one, 2)
    fail(other)
    one.forget()  # it would read the state within a second
    for breaker in (one, other):
        with pytest.raises(CircuitOpen) as raised:
            breaker.sync.admit()
        assert raised.value.name == "mail"
        assert isinstance(raised.value.until, timedelta)
        assert timedelta(minutes=4) < raised.value.until <= timedelta(minutes=5)
    shared.breaker("other").sync.admit()


def test_one_probe_at_a_time_and_its_success_closes_for_all(shared: Shared) -> None:
    crowd = [shared.breaker(cooldown=0.05) for _ in range(4)]
    fail(crowd[0], 3)
    time.sleep(0.06)
    start, admitted, refused = threading.Barrier(4), list[Any](), list[CircuitOpen]()

    def enter(breaker: CircuitBreaker) -> None:
        start.wait()
        try:
            admitted.append((breaker, breaker.sync.admit()))
        except CircuitOpen as error:
            refused.append(error)

    threads = [threading.Thread(target=enter, args=(breaker,)) for breaker in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((prober, permit),) = admitted
    assert permit.probe
    assert len(refused) == 3
    prober.sync.settle(permit, Result.SUCCEEDED)
    for breaker in crowd:
        breaker.forget()
        assert not breaker.sync.admit().probe


def test_it_is_tripped_and_reset_by_hand_for_all(shared: Shared) -> None:
    one, other = shared.breaker(), shared.breaker()
    one.sync.trip("10m", "smtp moves")
    with pytest.raises(CircuitOpen):
        other.sync.admit()
    other.sync.reset("it has moved")
    one.forget()
    assert not one.sync.admit().probe


def test_changes_made_at_once_are_all_kept(shared: Shared) -> None:
    def slowly(circuit: Circuit, now: datetime) -> tuple[Circuit, None]:
        time.sleep(0.01)  # a concurrent reader must not overwrite the result
        return replace(circuit, failures=circuit.failures + 1), None

    places = [shared.open() for _ in range(6)]
    threads = [threading.Thread(target=place.change_sync, args=("mail", slowly)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    circuit, _, _ = places[0].change_sync("mail", lambda circuit, now: (circuit, None))
    assert circuit.failures == 6


def test_a_probe_that_is_never_settled_is_replaced_and_its_late_word_ignored(shared: Shared) -> None:
    one, other = (shared.breaker(threshold=1, cooldown=0.02, probe_timeout=0.1) for _ in range(2))
    fail(one)
    time.sleep(0.03)
    lost = one.sync.admit()
    assert lost.remaining is not None
    assert lost.remaining <= 0.1
    with pytest.raises(CircuitOpen):
        other.sync.admit()
    time.sleep(0.12)
    second = other.sync.admit()
    assert second.probe
    one.sync.settle(lost, Result.SUCCEEDED)
    with pytest.raises(CircuitOpen):
        one.sync.admit()
    other.sync.settle(second, Result.SUCCEEDED)
    other.sync.admit()


def test_a_rate_of_failures_opens_it_across_processes(shared: Shared) -> None:
    one, other = (shared.breaker(threshold=100, rate=0.5, min_calls=10) for _ in range(2))
    for breaker in (one, other):
        for _ in range(3):
            breaker.sync.call(lambda: None)
        fail(breaker, 2)
    one.forget()
    with suppress(CircuitOpen):
        fail(one, 10)
    one.forget()
    with pytest.raises(CircuitOpen):
        one.sync.admit()


async def test_the_awaiting_side_does_the_same(shared: Shared) -> None:
    breaker = shared.breaker(cooldown=0.05, probe_timeout=0.1)

    async def down() -> None:
        raise ConnectionError

    for _ in range(2):
        with pytest.raises(ConnectionError):
            await breaker.call(down)
    for _ in range(2):
        with pytest.raises(CircuitOpen):
            await breaker.call(down)
    await asyncio.sleep(0.06)
    with pytest.raises(CircuitOpen) as raised:
        await breaker.call(asyncio.sleep, 60)  # a probe that hangs is cancelled, and counts as failed
    assert isinstance(raised.value.__cause__, TimeoutError)
    with pytest.raises(CircuitOpen):
        await breaker.admit()
    await asyncio.sleep(0.06)
    async with breaker.guard() as permit:
        assert permit.probe
    async with breaker.guard() as permit:
        assert not permit.probe
    if isinstance(breaker.circuits, RedisCircuits):
        await breaker.circuits.close()


def test_a_failure_that_leaves_it_open_is_raised_as_that(shared: Shared) -> None:
    breaker = shared.breaker(threshold=2, cooldown=0.25)
    with pytest.raises(ConnectionError), breaker.sync.guard():
        raise ConnectionError("first")
    under_way = breaker.sync.admit()
    for word in ("the one that opens it", "the probe"):
        with pytest.raises(CircuitOpen) as raised, breaker.sync.guard():
            raise ConnectionError(word)
        assert str(raised.value.__cause__) == word
        assert breaker.sync.settle(under_way, Result.FAILED) is not None  # it met a dependency known to be down
        time.sleep(0.26)
    with pytest.raises(TerminalError), breaker.sync.guard():
        raise TerminalError("an answer")


async def test_a_probe_that_is_cancelled_goes_to_the_next(shared: Shared) -> None:
    breaker = shared.breaker(threshold=1, cooldown=0.02)
    there = asyncio.Event()

    async def probe() -> None:
        async with breaker.guard():
            there.set()
            await asyncio.sleep(60)

    with pytest.raises(CircuitOpen):
        async with breaker.guard():
            raise ConnectionError
    await asyncio.sleep(0.03)
    task = asyncio.create_task(probe())
    await there.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    permit = await breaker.admit()
    assert permit.probe
    if isinstance(breaker.circuits, RedisCircuits):
        await breaker.circuits.close()


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, Result.SUCCEEDED),
        (ConnectionError(), Result.FAILED),
        (TimeoutError(), Result.FAILED),
        (RuntimeError("unknown"), Result.FAILED),
        (ServiceRefused("s", "GET", "/", 503, {}), Result.FAILED),
        (ServiceRefused("s", "GET", "/", 429, {}), Result.SUCCEEDED),
        (ServiceRefused("s", "GET", "/", 404, {}), Result.SUCCEEDED),
        (TerminalError("no"), Result.SUCCEEDED),
        (CircuitOpen("another", 1), Result.ABANDONED),
        (Outage("disk"), Result.ABANDONED),
        (asyncio.CancelledError(), Result.ABANDONED),
        (KeyboardInterrupt(), Result.ABANDONED),
    ],
    ids=repr,
)
def test_only_being_out_of_order_counts_against_a_dependency(error: BaseException | None, result: Result) -> None:
    assert classify_failure(error) is result


def test_a_closed_circuit_costs_no_question_and_a_failure_one() -> None:
    class Counted(MemoryCircuits):
        refresh, asked = 60.0, 0

        def peek(self, name: str, /) -> None:  # type: ignore[override]
            return None

        def change_sync(self, name: str, change: Any, /) -> Any:
            self.asked += 1
            return super().change_sync(name, change)

    circuits = Counted()
    breaker = CircuitBreaker("mail", circuits)
    for _ in range(100):
        breaker.sync.call(lambda: None)
    assert circuits.asked == 1
    fail(breaker)
    assert circuits.asked == 2
    breaker.sync.call(lambda: None)
    assert circuits.asked == 3  # the row of failures is over, and everybody has to know
    breaker.sync.call(lambda: None)
    assert circuits.asked == 3


def test_a_process_reads_again_after_a_while(tmp_path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    store.migrate()
    one, other = (CircuitBreaker("mail", StoreCircuits(store), threshold=1, cooldown=0.4) for _ in range(2))
    other.sync.call(lambda: None)
    fail(one)
    other.sync.call(lambda: None)  # not known yet
    time.sleep(0.11)  # a quarter of the cooldown: before anybody could probe
    with pytest.raises(CircuitOpen):
        other.sync.admit()
    store.close_sync()


def test_when_the_state_is_out_of_reach_each_process_continues_alone(lines: LogCapture) -> None:
    with RedisServer() as server:
        circuits = RedisCircuits(server.url)
        breaker = CircuitBreaker("mail", circuits, threshold=2, cooldown="5m")
        breaker.sync.call(lambda: None)
        server.kill()
        breaker.forget()
        breaker.sync.call(lambda: None)
        assert lines.entries[0]["event"] == "circuit store unavailable"
        fail(breaker, 2)
        with pytest.raises(CircuitOpen):
            breaker.sync.admit()
        server.start()
        breaker.forget()
        breaker.sync.admit()
        circuits.close_sync()


def test_redis_expires_what_is_not_changed(redis: RedisServer) -> None:
    circuits = RedisCircuits(redis.url, "test:ttl", ttl=0.05)
    breaker = CircuitBreaker("mail", circuits, threshold=2, cooldown=0.1)
    fail(breaker)
    time.sleep(0.1)
    breaker.forget()
    fail(breaker)
    breaker.sync.admit()  # the first failure is forgotten
    circuits.close_sync()


def test_changes_of_state_are_logged(lines: LogCapture) -> None:
    breaker = CircuitBreaker("mail", threshold=1, cooldown=0.01, jitter=0)
    fail(breaker)
    time.sleep(0.02)
    breaker.sync.call(lambda: None)
    assert [line["event"] for line in lines.entries] == [
        "circuit open",
        "circuit half open",
        "circuit closed",
    ]
    assert lines.entries[0]["error"] == "ConnectionError: down"


def test_an_error_that_both_databases_would_refuse_is_still_stored(shared: Shared) -> None:
    breaker = shared.breaker(threshold=1)
    for _ in range(2):
        with pytest.raises(CircuitOpen), breaker.sync.guard():
            raise OSError("bad \x00 \ud800 " + "x" * 10_000)


def test_names_and_settings_are_checked() -> None:
    with pytest.raises(InvalidName):
        CircuitBreaker("no blanks")
    with pytest.raises(ConfigurationError):
        CircuitBreaker("x", threshold=0)


def test_the_store_keeps_a_row_only_of_what_had_a_failure(tmp_path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    store.migrate()
    breaker = CircuitBreaker("mail", StoreCircuits(store))
    breaker.sync.call(lambda: None)
    assert store.run_sync(breakers()) == []
    fail(breaker)
    (row,) = store.run_sync(breakers())
    assert (row.name, row.circuit.failures, row.circuit.state(row.now)) == ("mail", 1, CircuitState.CLOSED)
    store.close_sync()
