"""Stored ids and times become Python values, one by one or a column at once."""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.dialect import as_uuid, as_uuids, aware_time


@given(st.lists(st.uuids()))
def test_a_column_of_ids_is_read_like_each_id(ids: list[UUID]) -> None:
    texts = [str(id) for id in ids]
    assert as_uuids(texts) == [as_uuid(text) for text in texts] == ids
    assert as_uuids(ids) == ids


@given(st.integers(0, 2**41))
def test_milliseconds_are_an_aware_time(milliseconds: int) -> None:
    expected = datetime.fromtimestamp(milliseconds / 1000, UTC)
    assert aware_time(milliseconds) == aware_time(milliseconds) == expected
    assert aware_time(milliseconds).tzinfo is UTC
