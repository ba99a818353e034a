"""FAULTS 58: connections that go silent, are reset or trickle: the worker recovers without help, and SIGTERM always works."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.store import PostgresStore
from tests.engine.programs import shop
from tests.engine.programs.place import Place, Process, postgres_place, until
from tests.engine.programs.proxy import Fault, Proxy
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.long

LEASE, GRACE = 2.0, 3.0
SLACK = 2.0
"""Seconds for starting, claiming and settling on a busy machine."""

CHANNEL = '"holdfast_holdfast"'

LEASES = {"roles": ("holdfast-lease",)}
CLAIMS = {"statements": ("set status = 'in_flight'",)}
SETTLEMENTS = {"statements": ("set status = 'delivered'", "s.outcome")}
LISTENERS = {"statements": ('listen "',)}
PUBLISHERS = {"roles": ("test",)}
NEW = {"statements": ("select pg_backend_pid()",)}
EVERY = {"roles": ("holdfast", "holdfast-lease", "test")}
KINDS: dict[str, dict[str, Any]] = {
    "lease": LEASES,
    "claim": CLAIMS,
    "settle": SETTLEMENTS,
    "listen": LISTENERS,
    "publish": PUBLISHERS,
    "new": NEW,
    "all": EVERY,
}


@pytest.fixture
def place(postgres18: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(postgres18, tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


@pytest.fixture
def proxy(postgres18: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres18) as proxy:
        yield proxy


def start(place: Place, proxy: Proxy, **options: Any) -> Process:
    worker = place.worker("lab", dsn=proxy.dsn(place.dsn), **{"lease": LEASE, "grace": GRACE, **options})
    worker.says("worker started")
    return worker


def endure(place: Place, proxy: Proxy, kind: str, fault: Fault, seconds: float, **options: Any) -> Process:
    """A worker with a long handler under way while connections of one kind fail; returns it when all is done again."""
    lease = float(options.get("lease", LEASE))
    place.app()  # it publishes past the proxy
    through = place.app(proxy.dsn(place.dsn))
    through.sync.publish("visit", {"n": 0}, conn=None)
    worker = start(place, proxy, **options)
    place.delivered(1, "visit")
    place.publish("nap", n=1, seconds=2 * lease)
    place.noted("nap 1 started")
    place.terminate_backends()  # so that connections are opened during the fault, even if the pools have some
    with proxy.faulty(fault, **KINDS[kind]):
        deadline = time.monotonic() + seconds
        place.publish_many("visit", [{"n": n} for n in range(1, 11)])
        while time.monotonic() < deadline:
            time.sleep(seconds / 10)
            place.publish("visit", n=11)
        started = place.times("nap 1 started")
    ended = time.monotonic()
    new = through.sync.publish("visit", {"n": 12}, conn=None).id
    done = "select 1 from {hf}delivery where message_id = ? and status = 'delivered'"
    until(lambda: place.sql(done, new) != [], "new work waits", lease + SLACK, place.logs)
    print(f"{kind} {fault}: back after {time.monotonic() - ended:.2f} s, {proxy.struck} connections, {started} starts")
    assert started <= 2, f"one handler was started {started} times"
    place.drained(3 * lease + SLACK)
    assert worker.alive
    return worker


def ends_by_its_grace(worker: Process) -> None:
    began = time.monotonic()
    worker.signal(SIGTERM)
    assert worker.ended(GRACE + 1) == 0
    print(f"ended {time.monotonic() - began:.2f} s after SIGTERM")


@pytest.mark.parametrize("kind", ["lease", "claim", "all"])
def test_a_worker_recovers_within_a_lease_when_its_connections_went_silent(
    place: Place, proxy: Proxy, kind: str
) -> None:
    endure(place, proxy, kind, Fault.SILENT, 4)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_worker_recovers_within_a_lease_after_a_minute_of_faulty_connections(
    place: Place, proxy: Proxy, kind: str, fault: Fault
) -> None:
    ends_by_its_grace(endure(place, proxy, kind, fault, 60, lease=4))


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.TRICKLE])
def test_sigterm_ends_a_worker_by_its_grace_while_its_connections_fail(
    place: Place, proxy: Proxy, fault: Fault
) -> None:
    worker = start(place, proxy)
    place.publish("nap", n=1, seconds=60)
    place.noted("nap 1 started")
    with proxy.faulty(fault, **EVERY):
        place.publish("visit", n=1)
        until(lambda: proxy.struck > 0, "no connection was hit")
        ends_by_its_grace(worker)


def test_sigterm_ends_a_worker_that_starts_while_new_connections_are_silent(place: Place, proxy: Proxy) -> None:
    with proxy.faulty(Fault.SILENT, **NEW):
        worker = place.worker("lab", dsn=proxy.dsn(place.dsn), lease=LEASE, grace=GRACE)
        until(lambda: proxy.struck > 0, "no connection was hit")
        ends_by_its_grace(worker)


def test_sigterm_ends_a_worker_that_cannot_announce_itself(place: Place, proxy: Proxy) -> None:
    with proxy.faulty(Fault.SILENT, **LEASES):
        worker = place.worker("lab", dsn=proxy.dsn(place.dsn), lease=30, grace=GRACE)
        until(lambda: proxy.struck > 0, "no connection was hit")
        ends_by_its_grace(worker)


def test_the_end_of_an_app_does_not_wait_for_a_notification_on_a_silent_connection(place: Place, proxy: Proxy) -> None:
    hf = place.app(proxy.dsn(place.dsn))

    async def close_while_notifying() -> float:
        await hf.publish("visit", {"n": 0}, conn=None)
        with proxy.faulty(Fault.SILENT, **PUBLISHERS):
            hf._runtime.notifier.notify()
            while not proxy.struck:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await hf.close()
            return began

    began = asyncio.run(close_while_notifying())
    assert time.monotonic() - began < 2, "a cancelled statement ends within a second"


def test_a_migration_and_a_schema_check_do_not_wait_for_a_silent_server(place: Place, proxy: Proxy) -> None:
    store = PostgresStore(proxy.dsn(place.dsn), patience=timedelta(seconds=1))
    with proxy.faulty(Fault.SILENT, **NEW):
        for attempt in (store.schema_status, store.migrate):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                attempt()
            assert time.monotonic() - began < 4
    assert store.schema_status().found == store.schema_status().expected


def test_a_listener_whose_peer_went_silent_is_replaced(place: Place, proxy: Proxy) -> None:
    """The others keep working by polling; the hints return without help."""
    start(place, proxy)
    before = proxy.accepted
    with proxy.faulty(Fault.SILENT, **LISTENERS):
        place.terminate_backends()
        until(lambda: proxy.struck > 0, "the listener did not come back")
        place.publish("visit", n=1)
        place.delivered(1, "visit", SLACK)
    listening = f"select 1 from pg_stat_activity where query in ('select 1', 'listen {CHANNEL}')"
    until(lambda: place.sql(listening) != [], "no process listens again", 20, place.logs)
    assert proxy.accepted > before
