"""Stores in the states that operators meet."""

from datetime import timedelta
from uuid import UUID

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import all_deliveries, claim_all, failure, finish, job, put, register_consumers

NOW = timedelta(0)


async def dead_letters(store: Store, count: int, consumer: str = "mail", text: str = "boom") -> list[UUID]:
    """Dead letters of a job, oldest first."""
    await register_consumers(store, {consumer: []})
    published = await put(store, *(job(consumer, {"n": n}) for n in range(count)))
    await fail_pending(store, consumer, text)
    wanted = {one.id for one in published}
    return [d.id for d in await all_deliveries(store, Filter(consumers=(consumer,))) if d.message_id in wanted]


async def fail_pending(store: Store, consumer: str = "mail", text: str = "boom") -> None:
    """Claims everything of a consumer and dead-letters it."""
    for claimed in await claim_all(store, consumers=[consumer], generation=1000):
        assert await finish(store, claimed, DeadLetter(), error=failure(text))


async def one_in_each_state(store: Store) -> dict[str, UUID]:
    """A job in every state, by the state's name."""
    await register_consumers(store, {"mail": []})
    names = ("delivered", "failed", "discarded", "in_flight", "retrying")
    ids: dict[str, UUID] = {}
    for name in names:
        await put(store, job("mail", {"state": name}))
        (claimed,) = await claim_all(store)
        ids[name] = claimed.id
        match name:
            case "delivered":
                await finish(store, claimed, Deliver())
            case "failed" | "discarded":
                await finish(store, claimed, DeadLetter(), error=failure())
            case "retrying":
                await finish(store, claimed, Retry(timedelta(hours=1)), error=failure())
    from holdfast.stores.admin.actions import discard

    await store.run(discard([ids["discarded"]], "ada", None))
    return ids
