"""Publishing in the caller's transaction, on every kind of connection: message, deliveries and the caller's row
are there together or not at all, and the transaction stays the caller's."""

import pytest

from holdfast import Holdfast, KeyConflict
from tests.produce.callers import EACH, POSTGRES, SQLITE, Caller
from tests.produce.conftest import OrderPlaced, Stored, stored
from tests.produce.place import Place

on_all = pytest.mark.parametrize("way", [*SQLITE, *POSTGRES])
on_each = pytest.mark.parametrize("way", EACH)


@on_all
def test_committed_means_message_delivery_and_row_are_there_together(
    hf: Holdfast, caller: Caller, place: Place
) -> None:
    caller.insert(1)
    published = caller.publish(hf, OrderPlaced(1))
    assert published.created
    assert stored(place) == Stored([], {}), "nothing may be seen before the caller commits"
    caller.commit()
    assert stored(place) == Stored([1], {published.id: ["billing"]})


@on_all
def test_rolled_back_means_none_of_them_is_there(hf: Holdfast, caller: Caller, place: Place) -> None:
    caller.insert(1)
    caller.publish(hf, OrderPlaced(1))
    caller.rollback()
    assert stored(place) == Stored([], {})


@on_all
def test_a_publish_as_the_first_statement_is_inside_the_transaction(hf: Holdfast, caller: Caller, place: Place) -> None:
    caller.publish(hf, OrderPlaced(1))
    assert stored(place) == Stored([], {})
    caller.insert(1)
    caller.rollback()
    assert stored(place) == Stored([], {})


@on_all
def test_a_savepoint_that_is_rolled_back_takes_only_its_own_message(hf: Holdfast, caller: Caller, place: Place) -> None:
    caller.insert(1)
    kept = caller.publish(hf, OrderPlaced(1))
    caller.savepoint()
    caller.insert(2)
    caller.publish(hf, OrderPlaced(2))
    caller.rollback_savepoint()
    caller.insert(3)
    also = caller.publish(hf, OrderPlaced(3))
    caller.commit()
    assert stored(place) == Stored([1, 3], {kept.id: ["billing"], also.id: ["billing"]})


@on_each
def test_a_key_is_stored_once_and_the_first_is_returned(hf: Holdfast, caller: Caller, place: Place) -> None:
    first = caller.publish(hf, OrderPlaced(1), key="order:1:placed:v1")
    again = caller.publish(hf, OrderPlaced(1), key="order:1:placed:v1")
    caller.commit()
    assert (first.created, again.created) == (True, False)
    assert again.id == first.id
    assert stored(place).messages == {first.id: ["billing"]}


@on_each
def test_a_key_with_another_payload_is_a_conflict_and_the_rest_can_still_commit(
    hf: Holdfast, caller: Caller, place: Place
) -> None:
    first = caller.publish(hf, OrderPlaced(1), key="order:1:placed:v1")
    with pytest.raises(KeyConflict) as conflict:
        caller.publish(hf, OrderPlaced(2), key="order:1:placed:v1")
    assert conflict.value.message_id == first.id
    caller.insert(1)
    caller.commit()
    assert stored(place) == Stored([1], {first.id: ["billing"]})


@on_each
def test_many_at_once_come_back_in_order(hf: Holdfast, caller: Caller, place: Place) -> None:
    published = caller.publish_many(
        hf, [OrderPlaced(1), ("order.placed", {"order_id": 2}), (OrderPlaced, {"order_id": 3})]
    )
    caller.commit()
    assert list(stored(place).messages) == [one.id for one in published]
    numbers = place.rows("select payload ->> 'order_id' from {hf}message order by position")
    assert [int(row[0]) for row in numbers] == [1, 2, 3]


@on_each
def test_text_that_looks_like_a_parameter_arrives_as_it_is(hf: Holdfast, caller: Caller, place: Place) -> None:
    odd = "100% %s %(id)s :id $1 ? {hf} 'quoted' \"twice\" ☃"
    caller.publish(hf, "note.taken", {"text": odd}, headers={"trace": odd})
    caller.commit()
    ((text, trace),) = place.rows("select payload ->> 'text', headers ->> 'trace' from {hf}message")
    assert (text, trace) == (odd, odd)


@on_each
def test_the_callers_transaction_continues_and_can_be_used_again(hf: Holdfast, caller: Caller, place: Place) -> None:
    published = caller.publish(hf, OrderPlaced(1))
    caller.insert(1)
    assert caller.execute("select count(*) from orders") not in ([], [(0,)])
    caller.commit()
    assert stored(place) == Stored([1], {published.id: ["billing"]})
