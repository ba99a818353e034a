"""FAULTS 23: the primary is lost and its standby is promoted; processes with a DSN of both hosts continue."""

from pathlib import Path

import pytest

from holdfast.runtime.store_factory import open_store
from tests.engine.oracle import Oracle
from tests.engine.programs import shop
from tests.engine.programs.place import Place, until
from tests.servers.postgres import PostgresServer
from tests.servers.standby import StandbyServer

pytestmark = pytest.mark.long


def test_worker_and_publisher_continue_on_a_promoted_standby_and_lose_nothing(tmp_path: Path) -> None:
    """Replication is synchronous, so that an acknowledged commit is on the standby."""
    with PostgresServer(18) as primary:
        primary.create_database("shop")
        with StandbyServer(primary) as standby:
            primary.execute("alter system set synchronous_standby_names = 'standby'")
            primary.execute("select pg_reload_conf()")
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            place = Place(f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write", tmp_path)
            try:
                _fail_over(place, primary, standby)
            finally:
                place.close()


def _fail_over(place: Place, primary: PostgresServer, standby: StandbyServer) -> None:
    store = open_store(place.dsn)
    store.migrate()
    store.close_sync()
    for statement in shop.TABLES:
        place.sql(statement)
    worker = place.worker("shop", lease=2)
    worker.says("worker started")
    publisher = place.program("tests.engine.programs.publisher", "0", "750", "5", "0.3")
    until(lambda: place.statuses().get("delivered", 0) > 100, "nothing is delivered", 30, place.logs)
    primary.kill()
    standby.promote()
    place.reached("published", 60)
    place.allow("enough")
    assert publisher.ended() == 0
    place.drained(60)
    assert worker.alive
    Oracle(place).everything()
    assert standby.execute("select count(*) from holdfast.delivery where status = 'delivered'", database="shop")[0][0]
