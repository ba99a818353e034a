"""Batches that are built in parts while PostgreSQL stores them."""

from holdfast import Holdfast
from holdfast.stores.messages.publish import LazyMessages


def test_ids_have_the_order_of_the_batch_across_its_parts() -> None:
    hf = Holdfast("postgresql://nobody@127.0.0.1:1/none")
    # Most parts of 500 are built within a millisecond. The last one has one event.
    messages = hf._runtime.build_many([("order.placed", {"n": n}) for n in range(10_001)], None, headers=None)
    assert isinstance(messages, LazyMessages)
    ids = [message.id for part in messages.make() for message in part]
    assert len(ids) == 10_001
    assert ids == sorted(ids)
