"""Identifiers sort by time, and a delivery's id is its pair of message and consumer."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.identity import (
    delivery_id,
    delivery_ids,
    delivery_range,
    first_id,
    time_after,
    uuid7,
    uuid7_at,
    uuid7s,
    uuid_of,
)

milliseconds = st.integers(0, 2**48 - 1)
bits = st.integers(0, 2**74 - 1)
consumers = st.from_regex(r"[a-z0-9_][a-z0-9_:/-]{0,30}", fullmatch=True)
ids = st.uuids()


@given(milliseconds, bits)
def test_a_message_id_is_a_version_7_uuid(ms: int, random_bits: int) -> None:
    made = uuid7(ms, random_bits)
    assert made.version == 7
    assert made.variant == RFC_4122
    assert made.int >> 80 == ms


@given(milliseconds, bits, milliseconds, bits)
def test_message_ids_sort_by_time_and_then_by_their_random_bits(a: int, x: int, b: int, y: int) -> None:
    assert (uuid7(a, x) < uuid7(b, y)) is ((a, x) < (b, y))
    assert (uuid7(a, x) == uuid7(b, y)) is ((a, x) == (b, y))


def test_the_published_example_of_rfc_9562_comes_out() -> None:
    expected = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
    assert uuid7(0x017F22E279B0, 0xCC3 << 62 | 0x18C4DC0C0C07398F) == expected


@pytest.mark.parametrize(("ms", "random_bits"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**74)])
def test_numbers_that_do_not_fit_are_refused(ms: int, random_bits: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        uuid7(ms, random_bits)


@pytest.mark.parametrize("days", [-1, 0, 1])
@pytest.mark.parametrize("at", [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)])
def test_the_earliest_and_the_latest_time_have_a_first_id(at: datetime, days: int) -> None:
    first = first_id(at, timedelta(days=days))
    assert first == uuid7(first.int >> 80, 0)


def test_the_first_id_of_a_time_begins_with_that_time() -> None:
    at = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
    assert first_id(at, timedelta(seconds=-2)) == uuid7(int(at.timestamp() * 1000) - 2000, 0)


def test_a_delivery_id_never_changes_between_releases() -> None:
    message = UUID("01890000-0000-7000-8000-000000000001")
    assert delivery_id(message, "billing") == UUID("01890000-0000-7000-be99-be90f0522c6b")


@given(ids, consumers)
def test_a_delivery_id_keeps_the_time_and_the_variant(message: UUID, consumer: str) -> None:
    made = delivery_id(message, consumer)
    assert made.int >> 62 == message.int >> 62
    assert delivery_id(message, consumer) == made


@given(ids, consumers)
def test_a_delivery_lies_in_the_range_of_its_message(message: UUID, consumer: str) -> None:
    lowest, highest = delivery_range(message)
    assert lowest <= delivery_id(message, consumer) <= highest
    assert lowest <= message <= highest
    assert highest.int - lowest.int == 2**62 - 1


@given(ids, st.lists(consumers, unique=True))
def test_each_consumer_has_its_own_delivery(message: UUID, names: list[str]) -> None:
    assert len({delivery_id(message, name) for name in names}) == len(names)


@given(st.lists(ids, unique=True), consumers)
def test_each_message_has_its_own_delivery(messages: list[UUID], consumer: str) -> None:
    assert len({delivery_id(message, consumer) for message in messages}) == len(messages)


@given(st.integers(min_value=0, max_value=2**128 - 1))
def test_an_id_made_in_half_the_time_is_the_same(number: int) -> None:
    made, usual = uuid_of(number), UUID(int=number)
    assert (made, hash(made), str(made), made.is_safe) == (usual, hash(usual), str(usual), usual.is_safe)
    assert pickle.loads(pickle.dumps(made)) == usual  # noqa: S301
    assert copy.deepcopy(made) == usual


nanoseconds = st.integers(0, 2**48 * 1_000_000 - 1)


@given(nanoseconds, st.integers(0, 2**62 - 1), st.integers(245, 2_000_000), st.integers(0, 2**62 - 1))
def test_ids_within_a_millisecond_sort_by_time(ns: int, x: int, later: int, y: int) -> None:
    made = uuid7_at(ns, x)
    assert (made.version, made.variant, made.int >> 80) == (7, RFC_4122, ns // 1_000_000)
    if (ns + later) // 1_000_000 < 2**48:
        assert made < uuid7_at(ns + later, y)


@given(st.integers(0, 2**47 * 1_000_000), st.lists(st.binary(min_size=8, max_size=8), max_size=5), consumers)
def test_many_ids_and_the_ids_of_their_deliveries_ascend(ns: int, random: list[bytes], consumer: str) -> None:
    made = uuid7s(ns, b"".join(random))
    assert len(made) == len(random)
    assert made == sorted(made)
    assert delivery_ids(made, consumer) == sorted(delivery_ids(made, consumer))
    assert made[:1] == [uuid7_at(ns, int.from_bytes(one) & (1 << 62) - 1) for one in random[:1]]
    assert all((one.version, one.variant) == (7, RFC_4122) for one in made)
    assert all(one.int >> 80 in (ns // 1_000_000, ns // 1_000_000 + 1) for one in made)


@given(st.integers(0, 2**47 * 1_000_000), st.integers(0, 2**62 - 1))
def test_the_time_after_an_id_is_the_first_whose_ids_are_above_it(ns: int, random_bits: int) -> None:
    later = time_after(uuid7_at(ns, random_bits))
    assert ns < later <= ns + 245
    assert uuid7_at(later, 0) > uuid7_at(ns, random_bits)
    assert uuid7_at(later - 1, 0) <= uuid7_at(ns, random_bits)


@given(st.lists(ids), consumers)
def test_many_delivery_ids_are_those_of_each_message(message_ids: list[UUID], consumer: str) -> None:
    assert delivery_ids(message_ids, consumer) == [delivery_id(id, consumer) for id in message_ids]
