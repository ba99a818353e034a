"""Worker rows: one lease per worker, so that a renewal never writes to a delivery."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.errors import Refused
from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.row import row_reader


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker instance and what it claims."""

    id: str
    generation: int
    queues: tuple[str, ...]
    consumers: tuple[str, ...]

    def serves(self, consumer: str, queue: str) -> bool:
        """Whether it claims the deliveries of this consumer in this queue. A worker without queues serves all of them."""
        return consumer in self.consumers and (not self.queues or queue in self.queues)


@dataclass(frozen=True, slots=True)
class WorkerRecord(LiveWorker):
    """A worker instance in the store, with its lease and the number of deliveries that it holds."""

    started_at: datetime
    alive_until: datetime
    alive: bool
    in_flight: int


@operation(single=True)
def start_worker(
    worker: str, generation: int, queues: Sequence[str], consumers: Sequence[str], lease: timedelta
) -> Steps[None]:
    """Registers a worker instance; an id is never used again."""
    values = {
        "worker": worker,
        "generation": generation,
        "queues": list(queues),
        "consumers": list(consumers),
        "lease": lease,
    }
    if not (yield Query("start_worker", values)):
        raise Refused("start", f"worker {worker}", "already known", "a restarted worker needs a new instance id")


@operation(single=True)
def renew_worker(worker: str, lease: timedelta) -> Steps[bool]:
    """Renews a worker's lease; False when it had expired or is gone, and then the worker must stop its handlers."""
    return bool((yield Query("renew_worker", {"worker": worker, "lease": lease})))


@operation(single=True)
def renew_and_read(worker: str, lease: timedelta) -> Steps[tuple[bool, str | None]]:
    """`renew_worker`, and the cancelled runs of the worker as JSON text of pairs (delivery, fence); None if there are none."""
    found = yield Query("renew_worker", {"worker": worker, "lease": lease})
    return (True, found[0][1]) if found else (False, None)


@operation
def forget_cancellations(worker: str, runs: Sequence[tuple[UUID, int]]) -> Steps[None]:
    """Removes cancellations that the worker has received."""
    batch = columns(("delivery_id", "fence"), runs)
    yield Query("forget_cancellations", {"worker": worker}, batches={"runs": batch})


@operation(single=True)
def stop_worker(worker: str) -> Steps[None]:
    """Ends a worker's lease immediately."""
    yield Query("stop_worker", {"worker": worker})


@operation(single=True)
def forget_workers(older_than: timedelta) -> Steps[None]:
    """Removes the rows of workers that ended long ago and hold no delivery."""
    yield Query("forget_workers", {"older_than": older_than})


@operation(reads=True)
def workers() -> Steps[list[WorkerRecord]]:
    """All workers, oldest first."""
    return [_read_worker(row) for row in (yield Query("workers"))]


@operation(reads=True)
def live_workers() -> Steps[list[LiveWorker]]:
    """The workers with a valid lease, oldest first. Unlike `workers`, it does not read deliveries."""
    return [_read_live_worker(row) for row in (yield Query("live_workers"))]


_read_worker = row_reader(WorkerRecord)
_read_live_worker = row_reader(LiveWorker)
