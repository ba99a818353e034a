"""A shop's store with work in every state, as an operator finds it in the morning."""

from datetime import timedelta
from uuid import UUID

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.failures.report import ErrorReport, report
from holdfast.core.retry import RetryPolicy
from holdfast.stores.admin.actions import discard
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, deliveries
from tests.support.builders import claim_all, finish, job, message, put, register_consumers

WORKER = "web-1/4711/ab12cd"
ORDERS = 6


def charge(order: int) -> None:
    raise RuntimeError(f"card declined for order {order}")


def failed_charge(order: int) -> ErrorReport:
    try:
        charge(order)
    except RuntimeError as error:
        return report(error)
    raise AssertionError("unreachable")


async def furnish(store: Store) -> None:
    """Six orders whose billing died after two runs and whose receipts went out; jobs; a schedule; a worker."""
    await register_consumers(
        store,
        {"billing": ["order.placed"], "receipts": ["order.*"]},
        queue="payments",
        retry=RetryPolicy.exponential(attempts=2),
    )
    await register_consumers(store, {"mail": [], "nightly": []}, queue="mail")
    await store.run(save_schedules([("nightly", "0 7 * * *", "Europe/Berlin", "last")]))
    await put(
        store,
        *(
            message(
                payload={"order_id": n, "note": "\x1b[31mred\x1b[0m [bold]markup[/bold]"},
                key=f"order:{n}:placed:v1",
                headers={"request_id": f"r-{n}"},
            )
            for n in range(ORDERS)
        ),
    )
    for change in (Retry(timedelta(0)), DeadLetter()):
        for claimed in await claim_all(store, WORKER):
            broken = claimed.consumer == "billing"
            error = failed_charge(7) if broken else None
            await finish(store, claimed, change if broken else Deliver(), WORKER, error=error)
    oldest = await store.run(deliveries(Filter(consumers=("billing",)), 50))
    await store.run(discard([oldest[-1].delivery.id], "ada", "test order"))
    await put(store, job("mail", {"to": "ada@example.com"}, queue="mail", delay=timedelta(hours=1)))
    # It outlives the slowest test.
    await store.run(
        start_worker(WORKER, 41, ["default", "mail", "payments"], ["billing", "mail", "nightly"], timedelta(hours=1))
    )


async def found(store: Store, wanted: Filter) -> list[UUID]:
    """Ids, newest first."""
    return [one.delivery.id for one in await store.run(deliveries(wanted, 100))]
