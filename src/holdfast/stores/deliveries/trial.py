"""The trial of a blocked consumer with flow control."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.deliveries.debounce import debounce_steps
from holdfast.stores.deliveries.flow import Floors, FlowScan, flow_claim_steps
from holdfast.stores.operation import Query, Steps

_KEYS = 100


def flow_trial(
    worker: str, lease: timedelta, *, suspects: bool = False
) -> Callable[[Sequence[Lane]], Steps[list[Claimed]]]:
    """What `claim_trial` runs for lanes with flow control: it claims one delivery as its consumer's settings allow."""

    def claim_first(lanes: Sequence[Lane]) -> Steps[list[Claimed]]:
        if len(lanes) > 1:
            yield Query("lock_flow", locks=_locks(lanes))
        for lane in lanes:
            if lane.flow is not None and lane.flow.is_debounced:
                claims = (yield from debounce_steps(lane, worker, lease, 1, suspects=suspects)).claims
            else:
                claims = yield from _first(lane, worker, lease, suspects=suspects)
            if claims:
                return claims
        return []

    return claim_first


def _locks(lanes: Sequence[Lane]) -> tuple[str, ...]:
    """The locks of all lanes, of queues first as in every claim: taken one lane after another, they could deadlock."""
    each = [lane.flow.locks(lane) for lane in lanes if lane.flow is not None]
    queues = {f"flow queue {lane.queue}" for lane in lanes}
    names = {name for locks in each for name in locks}
    return (*sorted(names & queues), *sorted(names - queues))


def _first(lane: Lane, worker: str, lease: timedelta, *, suspects: bool) -> Steps[list[Claimed]]:
    """One of the oldest deliveries, or one of a key behind them: the oldest may all belong to keys that cannot run."""
    keyed = lane.flow is not None and lane.flow.consumer is not None and lane.flow.consumer.key is not None
    scan = FlowScan(1)
    for _ in range(_KEYS if keyed and not suspects else 1):
        found = yield from flow_claim_steps(lane, worker, lease, scan, Floors(), suspects=suspects)
        if found.claims or (scan.cursor is not None and not found.keys):
            return found.claims
        scan = FlowScan(1, found.cursor or "")
    return []
