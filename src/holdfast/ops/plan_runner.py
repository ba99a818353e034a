"""The plan runner: a periodic task of workers that executes plans and counts their results."""

from datetime import timedelta

from holdfast.ops.plans import advance_plans, follow_plans
from holdfast.ops.steps import run_steps
from holdfast.stores.protocol import Store


class PlanRunner:
    """Executes the started plans and counts the results of their deliveries, every second. Any number may run."""

    interval = timedelta(seconds=1)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def perform(self, worker: str) -> None:
        await run_steps(self._store, advance_plans(runner=worker))
        await run_steps(self._store, follow_plans())
