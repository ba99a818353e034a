"""Every guard has a test that goes red when the guard is removed; `mutants.py` holds the list."""

import asyncio

import pytest

from holdfast.stores.protocol import Store
from tests.stores.admin import test_psql
from tests.stores.concurrency import test_interleaved
from tests.stores.deliveries import test_claim, test_removal
from tests.stores.flow_mutants import KNOWN_KEYS
from tests.stores.mutants import MUTANTS
from tests.stores.mutation import Mutant, applied

pytestmark = pytest.mark.long

_PLACES = {"postgres": "postgres18", "sqlite": "sqlite"}
_LOCKS = [m for m in MUTANTS if m.scenario in vars(test_interleaved).values()]
"""Two transactions at once: how they wait for each other's locks may differ between versions."""
_RUNS = [*((_PLACES[m.database], m) for m in MUTANTS), *(("postgres16", m) for m in _LOCKS)]


@pytest.mark.parametrize(
    ("place", "mutant"),
    _RUNS,
    indirect=["place"],
    ids=[str(m) if place in _PLACES.values() else f"16-{m}" for place, m in _RUNS],
)
async def test_the_scenario_fails_without_the_guard(store: Store, mutant: Mutant) -> None:
    assert mutant.scenario is not None
    with applied(store, mutant), pytest.raises(mutant.errors):
        await asyncio.wait_for(mutant.scenario(store), 60)


def test_no_mutant_is_listed_twice() -> None:
    listed = [(m.database, m.where, m.guard, m.left) for m in MUTANTS]
    assert len(set(listed)) == len(listed)


def test_both_dialects_are_mutated_alike() -> None:
    """What is listed for one only is about two transactions at once, psql, one statement for several claims, or floors under
    an old snapshot, which SQLite does not have."""
    by_scenario: dict[object, set[str]] = {}
    for mutant in MUTANTS:
        by_scenario.setdefault(mutant.scenario, set()).add(mutant.database)
    alone = [scenario for scenario, databases in by_scenario.items() if databases != {"postgres", "sqlite"}]
    together = test_removal.test_two_deliveries_of_a_message_that_end_together_take_it_with_them
    floors = (
        test_claim.test_every_unknown_lane_is_found_between_known_ones,
        test_claim.test_a_lane_is_read_from_its_floor_and_the_next_floor_is_its_oldest_delivery,
        KNOWN_KEYS,
    )
    theirs = [*vars(test_interleaved).values(), *vars(test_psql).values(), together, *floors]
    assert [scenario for scenario in alone if scenario not in theirs] == []
