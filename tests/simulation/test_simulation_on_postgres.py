"""The simulation on a real PostgreSQL server, where the seed chooses the order of statements."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulation.actors import worker
from simulation.environment import simulated
from simulation.features import application, declare, features
from simulation.planted import BUGS, Bug, planted
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


@pytest.mark.parametrize(("name", "delivered"), [(None, 7), ("floor that only rises", 6)])
def test_a_delivery_that_commits_below_the_floor_is_found_by_a_scan_of_the_whole_lane(
    database: PostgresDatabase, name: str | None, delivered: int
) -> None:
    async def publishes(world: World, process: Process) -> None:
        hf = application(world, process)
        await hf._runtime.registration.prepare()
        job = declare("later").declared_jobs["remind"]
        # The lane always has a pending delivery, so its floor is kept.
        await job.using(delay="50s").enqueue(1)
        async with database.transaction(process) as connection:
            await job.using(conn=connection).enqueue(2)
            for n in range(3, 9):
                await job.enqueue(n)
                await asyncio.sleep(0.5)

    seed = next(seed for seed in range(1, 21) if "later" in features(World(replace(_SMALL, seed=seed), database)))
    bug = next((one for one in BUGS if one.name == name), Bug("none"))
    with planted(bug, database):
        world = World(replace(_SMALL, seed=seed, fault_rate=0), database)
        with simulated(world):
            world.quiet = True
            world.start("worker", worker)
            world.start("publisher", publishes, until=lambda: True)
            world.run(lambda: False, 40)
            ((found,),) = database.read("select count(*) from holdfast.delivery where status = 'delivered'")
            world.close()
    assert found == delivered


def test_a_planted_bug_is_found(database: PostgresDatabase) -> None:
    bug = next(one for one in BUGS if one.name == "acknowledged before the handler")
    with planted(bug, database):
        assert simulate(replace(_SMALL, seed=1), database).violations
