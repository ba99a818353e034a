"""The brokers' topics, streams and queues that an app reads from and sends to."""

from typing import TYPE_CHECKING

from holdfast.ops.doctor.broker_checks import CheckedEndpoint

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


def broker_endpoints(app: "Holdfast") -> list[CheckedEndpoint]:
    """Every declared source and relay target. Nothing is connected."""
    sources: list[CheckedEndpoint] = [feed.source for feed in app.broker_sources.values()]
    return sources + [relay.target for relay in app.relays.values()]
