"""Requests that schemathesis makes from the OpenAPI document: none breaks the API, and every answer is documented."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from holdfast.interfaces.api.app import ENDPOINTS, PREFIX, api
from holdfast.interfaces.api.endpoint import ApiEndpoint
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated
from tests.support.failures import dead_letters, one_in_each_state

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = SqliteStore(Path(tmp_path_factory.mktemp("api")) / "holdfast.db")
    store.migrate()
    yield loaded(store)
    store.close_sync()


@pytest.fixture(scope="module")
def postgres(postgres18: PostgresServer) -> Iterator[Any]:
    store = PostgresStore(migrated(postgres18, "fuzzed"))
    yield loaded(store)
    store.close_sync()


def loaded(store: Store) -> tuple[Any, dict[str, str]]:
    """The API on a store that holds something of everything, and a token for all of it."""
    import schemathesis

    ops = Operations(store)

    async def fill() -> str:
        await one_in_each_state(store)
        await dead_letters(store, 3, consumer="export")
        await ops.plan_replay(Filter(), actor="ada")
        await ops.trip_breaker("payments", actor="ada", force=True)
        made = await ops.create_token("fuzz", scope="admin", actor="root")
        await store.close()
        return made.secret

    secret = asyncio.run(fill())
    return schemathesis.openapi.from_asgi(f"{PREFIX}/openapi.json", api(ops)), {"Authorization": f"Bearer {secret}"}


# Its own strategies use the random module.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method}{one.path}")
def test_no_request_breaks_it_and_every_answer_is_documented(sqlite: Any, endpoint: ApiEndpoint) -> None:
    fuzz(sqlite, endpoint, 4)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method}{one.path}")
def test_no_request_breaks_it_on_postgresql(postgres: Any, endpoint: ApiEndpoint) -> None:
    fuzz(postgres, endpoint, 60)


def fuzz(schema: Any, endpoint: ApiEndpoint, examples: int) -> None:
    """Sends requests that fit the document, and others that do not."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    described, headers = schema
    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    if endpoint.body is not None:
        # In a query every value is a text: "null" is as good a name as any.
        wanted.append(checks.negative_data_rejection)
    statuses: set[int] = set()
    operation = described[f"{PREFIX}{endpoint.path}"][endpoint.method]
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            statuses.add(case.call_and_validate(checks=wanted, headers=headers).status_code)

        ask()
    if endpoint.method == "GET" and not endpoint.names:
        assert 200 in statuses, "at least one got through"
