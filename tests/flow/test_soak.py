"""Soak runs: workers are killed and stopped while operators pause, replay, discard and cancel, and no promise breaks.

`make soak ARGS="tests/flow/test_soak.py"` runs 30 on PostgreSQL and 10 on SQLite; FLOW_MESSAGES and FLOW_KILLS change the
size of a run, and `-k "postgres18 and seed3-"` chooses one.
"""

import os

import pytest

from tests.flow import worker
from tests.flow.chaos import Chaos
from tests.flow.oracle import Oracle
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

MESSAGES = int(os.environ.get("FLOW_MESSAGES", "500"))
KILLS = int(os.environ.get("FLOW_KILLS", "18"))
_RUNS = {"postgres18": 30, "sqlite": 10}

pytestmark = pytest.mark.timeout(570)


async def soak(dsn: str, seed: int, messages: int, kills: int, through: str | None = None) -> Oracle:
    chaos = Chaos(dsn, seed, through=through)
    await chaos.run(messages, kills)
    oracle = Oracle(worker.PROMISES, worker.QUEUES).read(chaos.database.records())
    print(f"seed {seed}: {sum(oracle.claims.values())} claims, {dict(chaos.done)}")
    assert oracle.violations == []
    left = chaos.database.sql("select count(*) from {hf}delivery where locked_by is not null")
    assert left == [(0,)], "a lease was left behind"
    assert set(oracle.claims) == set(worker.PROMISES)
    return oracle


@pytest.mark.long
async def test_no_promise_breaks_in_a_short_run(dsn: str) -> None:
    await soak(dsn, 1, 50, 3)


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
@pytest.mark.parametrize(
    ("messages", "kills"), [pytest.param(30, 1, marks=pytest.mark.long), pytest.param(500, 18, marks=pytest.mark.soak)]
)
async def test_no_promise_breaks_through_a_pooler_in_transaction_mode(
    dsn: str, postgres18: PostgresServer, messages: int, kills: int
) -> None:
    # Few sessions, so that a worker meets one that was another's.
    with PgBouncer(postgres18, settings={"default_pool_size": 6}) as pooler:
        await soak(dsn, 1, messages, kills, pooler.dsn(dsn.rpartition("/")[2]))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("dsn", "seed"),
    [pytest.param(name, seed, id=f"{name}-seed{seed}-") for name, runs in _RUNS.items() for seed in range(runs)],
    indirect=["dsn"],
)
async def test_no_promise_breaks(dsn: str, seed: int) -> None:
    oracle = await soak(dsn, seed, MESSAGES, KILLS)
    # Limits are reached, not only kept.
    assert oracle.most["all_limited", ""] == 4
    assert oracle.most["key_limited", "k0"] == 2
    assert oracle.most["queue mail", ""] == worker.QUEUES["mail"]
    assert oracle.most["both", ""] == 3
