"""PgBouncer in transaction mode: everything works, by polling; no session state is relied on. FAULTS 24."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest

from holdfast.stores.admin.actions import replay
from holdfast.stores.postgres.store import PostgresStore
from tests.engine.programs import shop
from tests.engine.programs.place import Place, postgres_place, until
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.long


@pytest.fixture
def pooler(postgres18: PostgresServer) -> Iterator[PgBouncer]:
    # Few sessions, so that a client soon meets one that was another's.
    with PgBouncer(postgres18, settings={"default_pool_size": 4}) as pooler:
        yield pooler


@pytest.fixture
def place(postgres18: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(postgres18, tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


def test_everything_works_through_a_pooler_in_transaction_mode(place: Place, pooler: PgBouncer) -> None:
    dsn = pooler.dsn(place.dsn.rpartition("/")[2])
    app = place.app(dsn)
    worker = place.worker("lab", dsn=dsn, environment={"HOLDFAST_TEST_CRON": "* * * * *"})
    worker.says("worker started")

    with psycopg.connect(dsn, prepare_threshold=None) as db:  # the caller's transaction, committed and rolled back
        for n in range(20):
            app.sync.publish("hold", {"n": n}, conn=db)
        db.commit()
        app.sync.publish("hold", {"n": 99}, conn=db)
        db.rollback()
    for n in range(20):
        app.sync.publish("twice", {"n": n}, conn=None, key=f"twice:{n}")
        assert not app.sync.publish("twice", {"n": n}, conn=None, key=f"twice:{n}").created
    app.sync.publish("never", {"n": 1}, conn=None)
    assert isinstance(app.store, PostgresStore)
    assert app.store.pooled, "the pooler was not noticed"

    place.delivered(20, "hold")
    place.delivered(20, "twice")
    until(lambda: place.statuses().get("failed") == 1, "no dead letter", 30, place.logs)
    assert place.sql("select n, count(*) from effect group by n having count(*) > 1") == []
    assert place.one("select count(*) from effect") == 20

    place.sql("update {hf}schedule set last_at = last_at - interval '2 minutes', next_at = now()")
    place.noted("tick")

    place.allow("never")
    ids = [row[0] for row in place.sql("select id from {hf}delivery where status = 'failed'")]
    assert len(app.store.run_sync(replay(ids, "ada", "fixed"))) == 1
    place.delivered(1, "never")
    assert [action for (action,) in place.sql("select action from {hf}audit")] == ["replay"]

    worker.signal(SIGTERM)
    assert worker.ended() == 0
    assert place.sql("select id from {hf}worker") == []


def test_a_pooler_that_goes_away_and_comes_back_is_waited_out(place: Place, pooler: PgBouncer) -> None:
    dsn = pooler.dsn(place.dsn.rpartition("/")[2])
    worker = place.worker("lab", dsn=dsn, lease=2)
    worker.says("worker started")
    pooler.stop()
    worker.says("store unavailable")
    pooler.start()
    place.publish_many("visit", [{"n": n} for n in range(10)])
    place.drained()
    assert place.statuses() == {"delivered": 10}
    assert worker.alive


def test_a_transaction_that_uses_the_last_session_of_a_pooler_can_publish(
    postgres18: PostgresServer, place: Place
) -> None:
    with PgBouncer(postgres18, settings={"default_pool_size": 1}) as pooler:
        dsn = pooler.dsn(place.dsn.rpartition("/")[2])
        app = place.app(dsn)
        app.sync.publish("hold", {"n": 1}, conn=None)
        with psycopg.connect(dsn, prepare_threshold=None) as db:
            assert app.sync.publish("hold", {"n": 2}, conn=db).created
