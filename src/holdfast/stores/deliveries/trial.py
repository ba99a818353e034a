"""The trial of a blocked consumer with flow control."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.deliveries.debounce import debounce_steps
from holdfast.stores.deliveries.flow import Floors, FlowScan, flow_claim_steps
from holdfast.stores.operation import Steps


def flow_trial(
    worker: str, lease: timedelta, *, suspects: bool = False
) -> Callable[[Sequence[Lane]], Steps[list[Claimed]]]:
    """What `claim_trial` runs for lanes with flow control: it claims one delivery as its consumer's settings allow."""

    def claim_first(lanes: Sequence[Lane]) -> Steps[list[Claimed]]:
        for lane in lanes:
            if lane.flow is not None and lane.flow.is_debounced:
                claims = (yield from debounce_steps(lane, worker, lease, 1, suspects=suspects)).claims
            else:
                scan = FlowScan(1)
                claims = (yield from flow_claim_steps(lane, worker, lease, scan, Floors(), suspects=suspects)).claims
            if claims:
                return claims
        return []

    return claim_first
