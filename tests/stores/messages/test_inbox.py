"""The inbox for foreign keys: a consumer handles one (source, key) once, in any delivery."""

import pytest

from holdfast.core.delivery import Status
from holdfast.core.errors import AlreadyHandled, LeaseLost
from holdfast.stores.deliveries.settle import complete
from holdfast.stores.protocol import Store
from tests.support.builders import LEASE, claim_all, claim_of, claim_one, delivery, job, put, sql


async def test_a_foreign_key_is_handled_once(store: Store) -> None:
    await put(store, job(), job())
    one, two = await claim_all(store)
    await store.run(complete(claim_of(one), LEASE, ("mail", "kafka", "orders:0:17")))
    with pytest.raises(AlreadyHandled, match="orders:0:17"):
        await store.run(complete(claim_of(two), LEASE, ("mail", "kafka", "orders:0:17")))
    assert (await delivery(store, one.id)).status is Status.DELIVERED
    assert (await delivery(store, two.id)).status is Status.IN_FLIGHT
    assert sql(store, "select delivery_id from {hf}handled") in ([(one.id,)], [(str(one.id),)])


async def test_consumers_and_sources_have_separate_inboxes(store: Store) -> None:
    await put(store, job(), job(), job())
    one, two, three = await claim_all(store)
    await store.run(complete(claim_of(one), LEASE, ("mail", "kafka", "k")))
    await store.run(complete(claim_of(two), LEASE, ("mail", "nats", "k")))
    await store.run(complete(claim_of(three), LEASE, ("audit", "kafka", "k")))
    assert sql(store, "select count(*) from {hf}handled") == [(3,)]


async def test_a_lost_lease_leaves_no_inbox_row(store: Store) -> None:
    claimed = await claim_one(store)
    with pytest.raises(LeaseLost):
        await store.run(complete(claim_of(claimed, "another"), LEASE, ("mail", "kafka", "k")))
    assert sql(store, "select count(*) from {hf}handled") == [(0,)]
