"""Floors of keys: when they are used, which are passed to a walk, and when they are dropped."""

from datetime import UTC, datetime, timedelta

from holdfast.engine.claims.key_floors import COMMIT, KeyFloors
from holdfast.stores.deliveries.flow import FlowClaim

AT = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def walked(*visited: tuple[str, datetime | None], keys: int = 0) -> FlowClaim:
    return FlowClaim([], keys=keys or len(visited), at=AT, visited=visited)


def expensive() -> KeyFloors:
    floors = KeyFloors()
    floors.learn(walked(keys=10), 0.0, 0.02)
    assert floors.after("", 10, 0.02) == ()
    return floors


def test_floors_are_used_while_walks_without_them_are_expensive() -> None:
    floors = KeyFloors()
    floors.learn(walked(keys=10), 0.0, 0.004)
    assert floors.after("", 10, 1.0) is None
    # Many keys take their time without dead rows.
    floors.learn(walked(keys=1000), 0.0, 0.09)
    assert floors.after("", 10, 1.0) is None
    floors = expensive()
    floors.learn(walked(("a", AT - 9 * SECOND)), 1.0, 1.001)
    assert floors.after("", 10, 1.001) is None


def test_a_cheap_walk_over_known_keys_says_nothing_about_the_others() -> None:
    floors = expensive()
    floors.learn(walked(("a", AT - 9 * SECOND)), 1.0, 1.02)
    floors.learn(walked(("a", AT - 8 * SECOND)), 1.02, 1.021)
    assert floors.after("", 10, 1.03) == (("a", AT - 8 * SECOND),)


def test_a_walk_gets_the_known_keys_after_its_cursor_and_then_those_up_to_it() -> None:
    floors = expensive()
    floors.learn(walked(*((key, AT - 9 * SECOND) for key in "dbca")), 1.0, 1.02)
    assert [key for key, _ in floors.after("b", 3, 1.02) or ()] == ["c", "d", "a"]
    assert [key for key, _ in floors.after("b", 9, 1.02) or ()] == ["c", "d", "a", "b"]
    assert [key for key, _ in floors.after("", 2, 1.02) or ()] == ["a", "b"]


def test_a_floor_is_the_oldest_delivery_and_leaves_time_for_a_commit() -> None:
    floors = expensive()
    floors.learn(walked(("a", AT - 9 * SECOND), ("b", AT), ("c", None)), 1.0, 1.02)
    assert floors.after("", 9, 1.02) == (("a", AT - 9 * SECOND), ("b", AT - COMMIT), ("c", AT - COMMIT))
    # Nothing is due: the floor stays.
    floors.learn(walked(("a", None), ("b", None)), 1.02, 1.03)
    assert floors.after("", 2, 1.03) == (("a", AT - 9 * SECOND), ("b", AT - COMMIT))


def test_floors_are_dropped_after_twenty_times_what_it_costs_to_read_the_keys_without_them() -> None:
    floors = expensive()
    floors.learn(walked(("a", AT), ("b", AT)), 1.0, 1.01)
    # Half of these keys were known.
    floors.learn(walked(("b", AT), ("c", AT)), 1.1, 1.12)
    assert floors.after("", 9, 1.40) != ()
    assert floors.after("", 9, 1.42) == ()
    # At the latest after one second.
    floors.learn(walked(("a", AT)), 2.0, 3.0)
    assert floors.after("", 9, 3.9) != ()
    assert floors.after("", 9, 4.1) == ()
