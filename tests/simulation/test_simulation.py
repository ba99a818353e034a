"""The simulation: sound code passes, a seed repeats exactly, and planted bugs are found and reduced."""

from dataclasses import replace

import pytest

from simulation.database import Database
from simulation.features import OPTIONAL, features
from simulation.minimiser import minimise
from simulation.planted import BUGS, planted
from simulation.run import Result, simulate
from simulation.world import Settings, World

_SMALL = Settings(0, seconds=8, workers=2, messages=6, fault_rate=0.03)


@pytest.fixture(scope="module")
def database() -> Database:
    return Database()


def _run(seed: int, database: Database) -> Result:
    return simulate(replace(_SMALL, seed=seed), database)


def test_seeds_hold_and_repeat_exactly(database: Database) -> None:
    results = [_run(seed, database) for seed in range(1, 4)]
    assert [str(violation) for result in results for violation in result.violations] == []
    assert sum(len(result.faults) for result in results) > 3
    again = _run(3, database)
    assert (again.digest, again.trace) == (results[2].digest, results[2].trace)


@pytest.mark.parametrize(
    "name",
    [
        "acknowledged before the handler",
        "takeover keeps the fence",
        "join after the first step",
        "late consumer gets no earlier events",
    ],
)
def test_a_planted_bug_is_found(name: str, database: Database) -> None:
    bug = next(one for one in BUGS if one.name == name)
    with planted(bug, database):
        assert any(_run(seed, database).violations for seed in range(1, 13))


def test_every_optional_mechanism_is_used_by_some_seed(database: Database) -> None:
    used = [features(World(replace(_SMALL, seed=seed), database)) for seed in range(1, 21)]
    assert {name for names in used for name in names} == set(OPTIONAL)
    assert len(set(used)) > 10


def test_a_failing_seed_is_reduced_to_the_faults_that_matter(database: Database) -> None:
    bug = next(one for one in BUGS if one.name == "acknowledged before the handler")
    with planted(bug, database):
        failed = _run(1, database)
        smallest = minimise(failed, database, runs=2)
        assert smallest.violations
        assert len(smallest.faults) < len(failed.faults)
        replayed = simulate(smallest.settings, database)
        assert replayed.trace == smallest.trace
