"""The simulation on a real PostgreSQL server, where the seed chooses the order of statements."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulation.environment import simulated
from simulation.features import application
from simulation.planted import BUGS, planted
from simulation.postgres import PostgresDatabase
from simulation.process import Process
from simulation.run import simulate
from simulation.world import Settings, World

_SMALL = Settings(0, seconds=4, workers=2, messages=5)


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresDatabase]:
    database = PostgresDatabase()
    yield database
    database.shut_down()


def test_a_seed_holds_and_repeats_exactly(database: PostgresDatabase) -> None:
    first, other, again = (simulate(replace(_SMALL, seed=seed), database) for seed in (1, 2, 1))
    assert [str(violation) for result in (first, other) for violation in result.violations] == []
    assert len(first.faults) + len(other.faults) > 2
    assert again.trace == first.trace


def test_a_statement_that_waits_for_a_lock_lets_other_processes_run(database: PostgresDatabase) -> None:
    async def locks(world: World, process: Process) -> None:
        application(world, process)
        async with database.transaction(process) as connection:
            await connection.execute("lock table business in exclusive mode")
            await asyncio.sleep(2)
        process.record("committed")

    async def writes(world: World, process: Process) -> None:
        application(world, process)
        await asyncio.sleep(0.5)
        async with database.transaction(process) as connection:
            await database.insert(connection, "business", 1)
            process.record("written")

    world = World(replace(_SMALL, fault_rate=0), database)
    with simulated(world):
        for program in (locks, writes):
            world.start(program.__name__, program, until=lambda: True)
        world.run(lambda: not world.processes, 10)
        at, lines = world.clock.seconds, [" ".join(line.split()[1:]) for line in world.trace]
        world.close()
    assert lines == ["writes.1 waits for a lock", "locks.1 committed", "writes.1 written"]
    assert 2 < at < 3


def test_a_planted_bug_is_found(database: PostgresDatabase) -> None:
    bug = next(one for one in BUGS if one.name == "acknowledged before the handler")
    with planted(bug, database):
        assert simulate(replace(_SMALL, seed=1), database).violations
