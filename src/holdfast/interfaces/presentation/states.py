"""The state of a queue, consumer, projector or webhook endpoint as one word, as screens show it and filter by it."""

from datetime import timedelta

from holdfast.ops.resources.consumers import ConsumerState
from holdfast.ops.resources.projectors import ProjectorState
from holdfast.ops.resources.queues import QueueState
from holdfast.ops.resources.webhooks import Webhook

QUEUE_STATES = ("paused", "unserved", "late", "served")
CONSUMER_STATES = ("paused", "blocked", "unserved", "served")
WEBHOOK_STATES = ("disabled", "circuit_open", "active")
_LATE = timedelta(minutes=1)


def queue_state(one: QueueState) -> str:
    """The state of a queue; empty if it has no workers and nothing waits in it."""
    if one.paused_at is not None:
        return "paused"
    if one.pending and not one.workers:
        return "unserved"
    if one.lag > _LATE:
        return "late"
    return "served" if one.workers else ""


def consumer_state(one: ConsumerState) -> str:
    if one.paused_at is not None:
        return "paused"
    if one.blocked_until is not None:
        return "blocked"
    return "served" if one.workers else "unserved"


def projector_state(one: ProjectorState) -> str:
    if one.held:
        return "blocked"
    if one.paused_at is not None:
        return "paused"
    return "served" if one.workers else "unserved"


def webhook_state(one: Webhook) -> str:
    if one.disabled_at is not None:
        return "disabled"
    return "active" if one.circuit == "closed" else "circuit_open"
