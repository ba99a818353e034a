"""A large incident of known size: every place that shows figures shows the same true ones."""

import json
import re
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from bench.incident import Incident, fill
from holdfast.core.values.bounded_count import is_or_more
from holdfast.interfaces.api.app import api
from holdfast.interfaces.cli import main
from holdfast.interfaces.console.app import Console
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.stores import ops, place, store

__all__ = ["ops", "place", "store"]

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)

DEAD = 20_040
GROUPS = [("billing", 12_000), ("mail", 5_000), ("billing", 2_000), ("search", 1_000), ("export", 40)]


async def test_every_place_shows_the_same_true_numbers(store: Store, ops: Operations) -> None:
    incident = fill(store, rows=24_000, share=0.2)
    stats = await ops.stats()
    assert (int(stats.failed), is_or_more(stats.failed)) == (DEAD, False)
    groups = await ops.failure_groups()
    assert [(one.consumer, int(one.count), is_or_more(one.count)) for one in groups] == [(*g, False) for g in GROUPS]
    await _api_and_commands(ops)
    await _agent(ops)
    (finding,) = [one for one in await ops.doctor() if one.check == "dead letters"]
    assert finding.message.startswith(f"{DEAD:,} dead letters in 5 groups")
    await _metrics(ops)
    await _console(ops)
    await _charts(ops, incident)


async def _api_and_commands(ops: Operations) -> None:
    made = await ops.create_token("reader", scope="read", actor="root")
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(api(ops)),
        base_url="http://holdfast.test/api/v1",
        headers={"authorization": f"Bearer {made.secret}"},
    ) as client:
        answered = (await client.get("/stats")).raise_for_status().json()
        page = (await client.get("/failure-groups")).raise_for_status().json()
    for one in (_printed(ops, "stats"), answered):
        assert (one["failed"], one["at_least"]) == (DEAD, [])
    for some in (_printed(ops, "dlq", "groups"), page["items"]):
        assert [(one["consumer"], one["count"]) for one in some] == GROUPS


def _printed(ops: Operations, *command: str) -> Any:
    if isinstance(ops.store, PostgresStore):
        at = conninfo_to_dict(ops.store.conninfo)
        dsn = f"postgresql://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}"
    else:
        assert isinstance(ops.store, SqliteStore)
        dsn = f"sqlite:///{ops.store.path}"
    result = CliRunner().invoke(main, [*command, "--format", "json"], env={"HOLDFAST_DSN": dsn, "HOLDFAST_APP": None})
    return json.loads(result.stdout)


async def _agent(ops: Operations) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    from holdfast.interfaces.mcp.server import server

    async with Client(server(ops, actor="ada")) as agent:
        stats = (await agent.call_tool("get_stats", {})).structured_content
        groups = (await agent.call_tool("list_failure_groups", {})).structured_content
    assert (stats["failed"], stats["at_least"]) == (DEAD, [])
    assert [(one["consumer"], one["count"]) for one in groups["groups"]] == GROUPS


async def _metrics(ops: Operations) -> None:
    families = {one.name: one for one in await ops.metrics()}
    every = {one.labels["state"]: one.value for one in families["holdfast_deliveries_all"].samples}
    assert every["failed"] == DEAD
    dead = {
        one.labels["consumer"]: one.value
        for one in families["holdfast_deliveries"].samples
        if one.labels["state"] == "failed"
    }
    assert dead == {"billing": 14_000, "mail": 5_000, "search": 1_000, "export": 40}


async def _console(ops: Operations) -> None:
    console = Console(ops, lambda _: ("ada", "operator"), read_only=True)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(console.app), base_url="http://x.test") as visitor:
        overview = (await visitor.get("/")).raise_for_status().text
        groups = (await visitor.get("/groups")).raise_for_status().text
    assert f"{DEAD:,} dead letters in 5 failure groups" in overview
    assert f"{DEAD:,} in 1h" in overview
    for page in (overview, groups):
        assert sorted(re.findall(r"([\d,]+\+?) dead letters</a>", page)) == sorted(f"{size:,}" for _, size in GROUPS)


async def _charts(ops: Operations, incident: Incident) -> None:
    minutes = await ops.trend()
    assert {one.at: one.died for one in minutes if one.died} == incident.died_per_minute
    accepted = incident.accepted_per_minute
    failed = Counter(at.replace(second=0, microsecond=0) for _, at, death in incident.deliveries() if death)
    whole = [one for one in minutes if one.at + timedelta(minutes=1) < incident.now]
    assert len(whole) >= 50
    for one in whole:
        assert (one.accepted, one.failed) == (accepted[one.at], failed[one.at])
