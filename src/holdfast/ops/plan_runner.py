"""The plan runner: carries stored plans on, as a worker's duty or beside a server."""

from datetime import timedelta

from holdfast.ops.stored_plans import advance_plans
from holdfast.ops.work import perform
from holdfast.stores.protocol import Store


class PlanRunner:
    """Looks every second for plans that somebody started, and carries them on. Any number may run at once."""

    interval = timedelta(seconds=1)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def perform(self, worker: str) -> None:
        await perform(self._store, advance_plans(runner=worker))
