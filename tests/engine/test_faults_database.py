"""Faults of the database and the way to it: sessions cut, server gone, read-only, silent, slow, replies lost."""

import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest

from holdfast.core.errors import KeyConflict, StoreUnavailable
from tests.engine.programs import shop
from tests.engine.programs.place import Place, Process, postgres_place, until
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.long

LEASE = 2.0


@pytest.fixture
def place(postgres18: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(postgres18, tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


@pytest.fixture
def proxy(postgres18: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres18) as proxy:
        yield proxy


def start(place: Place, proxy: Proxy | None = None, **options: object) -> Process:
    """A worker of the laboratory that has announced itself, perhaps by way of the proxy."""
    dsn = None if proxy is None else proxy.dsn(place.dsn)
    worker = place.worker("lab", dsn=dsn, **{"lease": LEASE, **options})  # type: ignore[arg-type]
    worker.says("worker started")
    return worker


def attempts(place: Place) -> set[int]:
    return {row[0] for row in place.sql("select attempts from {hf}delivery")}


def test_it_drains_although_every_session_is_cut_five_times_a_second(place: Place) -> None:
    worker = start(place)
    place.publish_many("twice", [{"n": n} for n in range(200)])
    deadline = time.monotonic() + 60
    while place.undone():
        assert time.monotonic() < deadline, f"it does not drain: {place.statuses()}\n{place.logs()}"
        place.terminate_backends()
        time.sleep(0.2)
    assert place.statuses() == {"delivered": 200}
    assert worker.alive


def _outage(place: Place, proxy: Proxy, seconds: float) -> None:
    worker = start(place, proxy)
    place.publish_many("visit", [{"n": n} for n in range(20)])
    place.publish_many("nap", [{"n": n, "seconds": seconds / 2} for n in range(3)])
    until(lambda: place.times("started") == 3, "not under way", 30, place.logs)
    with proxy.away():
        time.sleep(seconds)
        place.publish_many("visit", [{"n": n} for n in range(20, 40)])  # others still reach the server
    assert worker.alive
    place.drained()
    assert place.statuses() == {"delivered": 43}
    assert place.sql("select id from {hf}delivery where status = 'failed'") == []


def test_a_worker_outlives_an_outage_of_the_database_and_drains_afterwards(place: Place, proxy: Proxy) -> None:
    _outage(place, proxy, 6.0)


@pytest.mark.soak
def test_a_worker_outlives_a_long_outage_of_the_database(place: Place, proxy: Proxy) -> None:
    _outage(place, proxy, 30.0)


def test_many_workers_that_reconnect_do_so_with_pauses(place: Place, proxy: Proxy) -> None:
    """FAULTS 22, in the small: what one worker asks of a server that refuses it bounds what fifty do.

    Claims, settlements, renewals, duties and the listener wait apart from each other, each longer after each failure
    and never alike. Two workers must stay below twenty connections a second; fifty then stay below five hundred.
    """
    workers = [start(place, proxy, lease=30) for _ in range(2)]
    seconds = 4.0
    with proxy.refusing():
        before, started = proxy.accepted, time.monotonic()
        time.sleep(seconds)
        rate = (proxy.accepted - before) / (time.monotonic() - started)
    assert rate < 20, f"{rate:.0f} connections a second"
    place.publish("visit", n=1)
    place.drained()
    assert all(worker.alive for worker in workers)


def test_a_server_that_turns_read_only_is_waited_out_and_no_session_stays_so(place: Place) -> None:
    assert place.server is not None
    worker = start(place)
    name = place.dsn.rpartition("/")[2]
    place.server.execute(f"alter database {name} set default_transaction_read_only = on")
    place.terminate_backends()
    worker.says("read-only")
    place.server.execute(f"alter database {name} reset default_transaction_read_only")
    place.publish_many("visit", [{"n": n} for n in range(10)])
    place.drained()
    assert place.statuses() == {"delivered": 10}
    assert worker.alive


def test_the_listener_comes_back_and_looks(place: Place) -> None:
    worker = start(place)
    for n in range(3):
        place.terminate_backends()
        place.publish("visit", n=n)
        place.delivered(n + 1, "visit")
    assert worker.alive


# Replies lost: FAULTS 20.


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "never sent"])
def test_a_settlement_whose_commit_is_in_doubt_is_looked_up_and_counts_once(
    place: Place, proxy: Proxy, forward: bool
) -> None:
    start(place, proxy, lease=30)
    proxy.lose("set status = 'delivered'", forward=forward)
    id = place.publish("visit", n=1)
    place.drained()
    assert proxy.lost == 1
    assert attempts(place) == {1}
    assert place.times(f"visit 1 {id}") == 1
    assert place.sql("select * from {hf}run") == []


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "never sent"])
def test_an_effect_whose_commit_is_in_doubt_is_applied_once(place: Place, proxy: Proxy, forward: bool) -> None:
    start(place, proxy, lease=30)
    proxy.lose_commit("complete(", forward=forward)
    place.publish("hold", n=1)
    place.drained()
    assert proxy.lost == 1
    assert place.one("select count(*) from effect") == 1
    assert attempts(place) == {1 if forward else 2}


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "never sent"])
def test_a_publish_whose_commit_is_in_doubt_can_be_repeated_under_its_key(
    place: Place, proxy: Proxy, forward: bool
) -> None:
    app = place.app(proxy.dsn(place.dsn))
    app.sync.publish("visit", {"n": 0}, conn=None)
    proxy.lose_commit("insert into", forward=forward)
    with pytest.raises(StoreUnavailable):
        app.sync.publish("visit", {"n": 1}, conn=None, key="visit:1")
    again = app.sync.publish("visit", {"n": 1}, conn=None, key="visit:1")
    assert again.created is not forward
    with pytest.raises(KeyConflict):
        app.sync.publish("visit", {"n": 2}, conn=None, key="visit:1")
    assert place.one("select count(*) from {hf}message where key = 'visit:1'") == 1


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "never sent"])
def test_a_claim_whose_reply_is_lost_is_not_stranded(place: Place, proxy: Proxy, forward: bool) -> None:
    start(place, proxy)
    proxy.lose("'in_flight'", forward=forward)
    place.publish("visit", n=1)
    place.drained()
    assert proxy.lost == 1
    assert place.times("visit 1") == 1


# Silence: FAULTS 10 and 21.


def test_when_only_the_renewal_is_cut_off_handlers_are_stopped_before_another_runs_them(
    place: Place, proxy: Proxy
) -> None:
    worker = start(place, proxy)
    place.publish("nap", n=1, seconds=4)
    place.noted("nap 1 started")
    with proxy.silent("holdfast-lease"):
        stopped_at = place.noted("nap 1 cancelled")
        other = start(place)
        until(lambda: place.times("nap 1 started") >= 2, "not taken up again", 30, place.logs)
        again_at = [at for at, text in place.notes() if text == "nap 1 started"][1]
        assert stopped_at < again_at
    assert "worker lease lost" in worker.log
    place.drained()
    other.signal(SIGTERM)
    assert other.ended() == 0
    place.publish("visit", n=2)
    place.delivered(1, "visit")
    assert worker.alive


def test_sessions_of_the_renewal_alone_may_be_cut_again_and_again(place: Place) -> None:
    worker = start(place)
    place.publish("nap", n=1, seconds=3)
    place.noted("nap 1 started")
    while place.undone():
        place.terminate_backends("holdfast-lease")
        time.sleep(0.1)
    assert attempts(place) == {1}
    assert "worker lease lost" not in worker.log


def test_a_silent_database_costs_the_lease_and_not_the_worker(place: Place, proxy: Proxy) -> None:
    worker = start(place, proxy)
    place.publish("nap", n=1, seconds=60)
    place.noted("nap 1 started")
    with proxy.silent():
        place.noted("nap 1 cancelled")
        worker.says("worker lease lost")
    place.publish("visit", n=2)
    place.delivered(1, "visit")
    assert worker.alive


def test_a_silent_database_that_never_speaks_again_on_old_connections_is_left_for_new_ones(
    place: Place, proxy: Proxy
) -> None:
    """A pooler that hangs: its kernel answers keepalives, so that only our own patience can end the wait."""
    worker = start(place, proxy, environment={"HOLDFAST_TEST_PATIENCE": "2"})
    place.publish("nap", n=1, seconds=3)
    place.noted("nap 1 started")
    with proxy.deaf():
        place.publish("visit", n=2)
        place.drained()
    assert attempts(place) == {1}, "the lease was kept, by another connection"
    assert worker.alive


def test_sigterm_while_the_database_is_away_ends_by_the_deadline(place: Place, proxy: Proxy) -> None:
    worker = start(place, proxy, grace=3)
    place.publish("nap", n=1, seconds=1)
    place.noted("nap 1 started")
    with proxy.away():
        worker.says("store unavailable")
        worker.signal(SIGTERM)
        assert worker.ended(15) == 0
    assert attempts(place) == {1}
    start(place)
    place.drained()
    assert place.statuses() == {"delivered": 1}


def test_sigterm_while_the_database_is_silent_ends_by_the_deadline(place: Place, proxy: Proxy) -> None:
    worker = start(place, proxy, grace=3, lease=30)
    with proxy.silent():
        place.publish("visit", n=1)
        worker.signal(SIGTERM)
        assert worker.ended(10) == 0


def test_a_slow_way_to_the_database_costs_no_lease_at_the_defaults(place: Place, proxy: Proxy) -> None:
    worker = start(place, proxy, lease=30)
    with proxy.slow(0.15):  # there and back: 300 ms
        place.publish_many("twice", [{"n": n} for n in range(30)])
        place.drained()
    assert place.statuses() == {"delivered": 30}
    assert "lease" not in worker.log
    assert attempts(place) == {2}


# Time limits of the role: FAULTS 64.


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
def test_a_time_limit_of_the_role_is_waited_out_by_a_worker_that_announces_itself(place: Place, limit: str) -> None:
    with psycopg.connect(place.dsn) as other:
        other.execute("lock table holdfast.worker in access exclusive mode")
        worker = place.worker("lab", lease=LEASE, dsn=f"{place.dsn}?options=-c%20{limit}%3D300")
        worker.says("at a time limit")
        assert "a bug" not in worker.log
    worker.says("worker started")
    place.publish("visit", n=1)
    place.drained()
    assert worker.alive


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
def test_a_time_limit_of_the_role_is_waited_out_at_start_up_and_while_working(place: Place, limit: str) -> None:
    dsn = f"{place.dsn}?options=-c%20{limit}%3D300"
    with psycopg.connect(place.dsn) as other:
        other.execute("lock table holdfast.subscription, holdfast.delivery in access exclusive mode")
        worker = place.worker("lab", lease=LEASE, dsn=dsn)
        worker.says("at a time limit")
    worker.says("worker started")
    with psycopg.connect(place.dsn) as other:
        other.execute("lock table holdfast.delivery in access exclusive mode")
        before = worker.log.count("at a time limit")
        until(lambda: worker.log.count("at a time limit") > before, "it does not notice", 30, place.logs)
    place.publish("visit", n=1)
    place.drained()
    assert worker.alive
    assert "a bug" not in worker.log


def test_an_idle_limit_of_the_role_does_not_end_a_worker(place: Place) -> None:
    dsn = f"{place.dsn}?options=-c%20idle_in_transaction_session_timeout%3D20"
    worker = place.worker("lab", lease=30, dsn=dsn)
    worker.says("worker started")
    place.publish_many("twice", [{"n": n} for n in range(20)])
    place.drained()
    assert worker.alive
