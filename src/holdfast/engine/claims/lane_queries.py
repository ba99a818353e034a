"""The queries that find the lanes of a worker session."""

from collections.abc import Iterable, Sequence

from holdfast.engine.worker.options import WorkerOptions
from holdfast.stores.deliveries.claim import Claimed, Lane, LaneList, discover_and_claim, list_lanes
from holdfast.stores.operation import Operation


def lanes_query(
    consumers: Iterable[str],
    options: WorkerOptions,
    queues: tuple[str, ...] | None,
    known: Sequence[Lane] | None = None,
) -> Operation[LaneList]:
    """Lists the lanes with pending deliveries; with `known`, those lanes and what is found between them."""
    return list_lanes(sorted(consumers), options.generation, queues=queues, suspects=options.suspects, known=known)


def discovery_query(
    consumers: Iterable[str],
    options: WorkerOptions,
    queues: tuple[str, ...] | None,
    known: Sequence[Lane],
    claimant: tuple[str, int],
) -> Operation[list[Claimed]]:
    """Finds the lanes and claims from them in one statement: an idle worker knows no lanes. `claimant`: worker and count."""
    worker, size = claimant
    arguments = (sorted(consumers), options.generation, worker, options.lease, size)
    return discover_and_claim(*arguments, queues=queues, suspects=options.suspects, known=known)
