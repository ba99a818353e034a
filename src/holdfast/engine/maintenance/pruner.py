"""Removes old rows that are no longer needed."""

from datetime import timedelta
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.identity import first_id
from holdfast.stores.admin.alert import forget_alert_groups
from holdfast.stores.admin.plan import forget_plan
from holdfast.stores.deliveries.dedupe import forget_seen
from holdfast.stores.deliveries.flow import forget_old_starts
from holdfast.stores.deliveries.progress import prune_progress
from holdfast.stores.deliveries.result import forget_results
from holdfast.stores.deliveries.worker import forget_workers
from holdfast.stores.groups.group import prune_groups
from holdfast.stores.integrations.idempotency import forget_requests
from holdfast.stores.messages.prune import FROM_THE_START, fill_failed_types, prune_deliveries, shortest_keep
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from holdfast.stores.workflows.run import prune_runs

log = get_logger("holdfast.prune")

_FORGET_AFTER = timedelta(days=1)


class Pruner:
    """Removes ended runs, delivered rows and ended plans older than `keep` (or than the `keep` of their consumer), rows of workers that ended long ago, and keys and results that have expired.

    Messages and failures stay.
    """

    interval = timedelta(minutes=10)

    def __init__(self, store: Store, keep: timedelta) -> None:
        self._store, self._keep = store, keep

    async def perform(self, worker: str) -> None:
        now, shortest = await self._store.run(clock()), await self._store.run(shortest_keep())
        top = first_id(now, -self._keep)
        # Runs first: the deliveries and the message of a run stay while it exists.
        first: UUID | None = FROM_THE_START
        while first is not None:
            _, first = await self._store.run(prune_runs(first, top, self._keep))
        cursor, removed, by_keep = FROM_THE_START, 0, shortest is not None
        ceiling = top if shortest is None else first_id(now, -min(shortest, self._keep))
        while True:
            count, following = await self._store.run(prune_deliveries(cursor, ceiling, self._keep, by_keep=by_keep))
            removed += count
            if following is None:
                break
            cursor = following
        first = FROM_THE_START
        while first is not None:
            first = await self._store.run(prune_groups(first, self._keep))
        while await self._store.run(fill_failed_types()):
            pass
        while await self._store.run(forget_results()):
            pass
        while await self._store.run(prune_progress()):
            pass
        await self._store.run(forget_workers(_FORGET_AFTER))
        await self._store.run(forget_seen())
        await self._store.run(forget_old_starts())
        await self._store.run(forget_alert_groups(_FORGET_AFTER))
        while (await self._store.run(forget_requests()))[1]:
            pass
        while await self._store.run(forget_plan(self._keep)):
            pass
        if removed:
            log.info("rows pruned", removed=removed, worker=worker)
