"""`holdfast drill`: each drill holds on both stores, leaves nothing behind, and can fail."""

import json
from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner

from holdfast.interfaces.cli import main
from holdfast.interfaces.demo.database import open_database
from holdfast.interfaces.drill import drills
from holdfast.interfaces.drill.report import PromiseCheck, perform
from holdfast.interfaces.drill.scratch import ConditionTimeout, ScratchStore
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


@pytest.fixture
def dsn(request: pytest.FixtureRequest, database: Callable[[PostgresServer], str]) -> str | None:
    return None if request.param == "sqlite" else database(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    ("dsn", "name"),
    [
        # It waits for a probe's turn, and nothing it waits for differs between the stores.
        pytest.param(
            place, name, marks=[pytest.mark.soak] if (place, name) == ("postgres18", "stopped-service") else []
        )
        for place in ("sqlite", "postgres18")
        for name in drills.DRILLS
    ],
    indirect=["dsn"],
)
async def test_the_promises_hold(name: str, dsn: str | None) -> None:
    result = await perform(name, drills.DRILLS[name], dsn)
    assert [check for check in result.checks if not check.kept] == []
    assert len(result.checks) >= 4


async def test_nothing_is_left_in_the_database(postgres18: PostgresServer, database: Callable[..., str]) -> None:
    dsn = database(postgres18)
    count = "select count(*) from information_schema.schemata where starts_with(schema_name, 'holdfast_drill')"
    seen = []

    async def look(store: ScratchStore) -> list[PromiseCheck]:
        seen.append(store.database.rows(count))
        raise ConditionTimeout("the drill was cut off")

    result = await perform("look", look, dsn)
    assert not result.kept
    assert seen == [[(1,)]]
    assert open_database(dsn, "holdfast").rows(count) == [(0,)]


def test_a_broken_promise_is_named_and_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(store: ScratchStore) -> list[PromiseCheck]:
        """Loses what it was given."""
        return [PromiseCheck("nothing is lost", kept=False, found="found 0, expected 1")]

    monkeypatch.setitem(drills.DRILLS, "forgetful", forgetful)
    run = CliRunner().invoke(main, ["drill", "run", "forgetful", "--format", "json"])
    assert run.exit_code == 1
    assert "broken: forgetful" in run.stderr
    (result,) = json.loads(run.stdout)
    assert (result["name"], result["kept"], result["checks"][0]["found"]) == ("forgetful", False, "found 0, expected 1")
    assert CliRunner().invoke(main, ["drill", "run", "nonsense"]).exit_code == 2


async def test_a_dedupe_key_emitted_twice_on_redis_is_one_event() -> None:
    with RedisServer() as server:
        result = await perform("duplicate-events", drills.duplicate_events, None, server.url)
        assert [check for check in result.checks if not check.kept] == []
        assert len(result.checks) == 8
        with redis.Redis.from_url(server.url) as client:
            assert client.keys("*") == []
