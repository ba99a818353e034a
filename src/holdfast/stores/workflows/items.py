"""Items of a map: one step runs once per item, and a join counts them."""

from collections.abc import Sequence
from uuid import UUID

from holdfast.core.delivery import Claim
from holdfast.core.errors import LeaseLost
from holdfast.core.identity import delivery_id
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.workflows.run import StepResult

_ITEM = ("occurrence", "delivery_id", "item")
_CHUNK = 500


@operation
def start_items(
    claim: Claim, run_id: UUID, epoch: int, join: str, name: str, consumer: str, items: Sequence[str]
) -> Steps[None]:
    """Stores a join and one delivery per item while the claim of the step is held; `LeaseLost` otherwise.

    `items` are JSON texts. When all of them are done, the step that holds the claim is woken. Items of a step that runs
    again after a retry have new deliveries.
    """
    owned = {"delivery_id": claim.delivery_id, "fence": claim.fence, "worker": claim.worker}
    values = {**owned, "run_id": run_id, "step": join, "waiting": len(items)}
    if not (yield Query("store_join", values)):
        raise LeaseLost(claim.delivery_id, claim.fence)
    suffix = f"@{epoch}" if epoch else ""
    rows = [(n, delivery_id(run_id, f"{name}#{n}{suffix}"), item) for n, item in enumerate(items)]
    for start in range(0, len(rows), _CHUNK):
        batch = {"items": columns(_ITEM, rows[start : start + _CHUNK])}
        yield Query("store_items", {"run_id": run_id, "step": name, "consumer": consumer}, batch)


@operation(reads=True)
def item_results(run_id: UUID, name: str) -> Steps[list[StepResult]]:
    """The results of all items, in their order."""
    return [StepResult(*row[:2]) for row in (yield Query("item_results", {"run_id": run_id, "step": name}))]
