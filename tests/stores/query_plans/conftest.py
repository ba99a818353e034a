"""Databases that are filled once for the tests of several modules."""

from collections.abc import Iterator

import pytest

from holdfast.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.stores.query_plans.backlog import FLOW_KEYS, pile_flow


@pytest.fixture(scope="package")
def flow_backlog(postgres18: PostgresServer) -> Iterator[PostgresStore]:
    """The consumers `limited` and `ordered`, each with 100,000 pending deliveries of 20,000 keys.

    Each key of `ordered` has a dead letter before them. Of the last tenth of the keys, one more is in flight.
    """
    store = PostgresStore(postgres18.create_database("flow_backlog"))
    store.migrate()
    pile_flow(store, FLOW_KEYS, 5)
    yield store
    store.close_sync()
    postgres18.drop_database("flow_backlog")
