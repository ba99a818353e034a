"""Errors about work that this process no longer owns or that is already done: roll back and stop."""

from __future__ import annotations

from uuid import UUID

from holdfast.core.errors.root import HoldfastError, quoted


class LeaseLost(HoldfastError):
    """The caller no longer owns the claim. Its write changed nothing.

    For a batch, `delivery_id` and `fence` are those of its first delivery, and `size` is the number of its deliveries: one
    of them is lost.
    """

    def __init__(self, delivery_id: UUID, fence: int, size: int = 1) -> None:
        super().__init__(delivery_id, fence, size)
        self.delivery_id, self.fence, self.size = delivery_id, fence, size

    def __str__(self) -> str:
        held = f"delivery {self.delivery_id} is no longer held under fence {self.fence}"
        if self.size > 1:
            held = (
                f"one of the {self.size} deliveries of the batch that starts with {self.delivery_id} is no longer held"
            )
        return (
            f"{held}: its lease expired, or "
            "it was cancelled or replayed; roll back and stop, the current owner settles it"
        )


class AlreadyCompleted(LeaseLost):
    """An earlier `ctx.complete` of this run has completed the delivery. Let the exception roll back this transaction."""

    def __str__(self) -> str:
        what = f"delivery {self.delivery_id}" if self.size == 1 else f"the batch that starts with {self.delivery_id}"
        return (
            f"{what} is already completed: this run called ctx.complete before, and the database has rolled back the "
            "transaction of this call; call ctx.complete once, at the end of the transaction that writes the effect"
        )


class ReservationLost(HoldfastError):
    """The request no longer owns its idempotency key. Let the exception roll back the effect."""

    def __init__(self, scope: str, key: str) -> None:
        super().__init__(scope, key)
        self.scope, self.key = scope, key

    def __str__(self) -> str:
        return (
            f"idempotency key {quoted(self.key)} of scope {quoted(self.scope)} is no longer held by this request: its "
            "lease expired and another request took over, or an operator released it; roll back; the other request "
            "sends the response"
        )


class RebuildLost(HoldfastError):
    """This process no longer owns the rebuild. Its last write changed nothing, and the live result is unchanged."""

    def __init__(self, projector: str) -> None:
        super().__init__(projector)
        self.projector = projector

    def __str__(self) -> str:
        return (
            f"this process no longer owns the rebuild of projector {quoted(self.projector)}: its lease expired, or "
            "another rebuild started; check `holdfast projectors list`, and rebuild again"
        )


class RebuildStopped(HoldfastError):
    """The handler cannot apply an event during a rebuild. With an online rebuild the live result is unchanged."""

    def __init__(self, projector: str, message_id: UUID, problem: str) -> None:
        super().__init__(projector, message_id, problem)
        self.projector, self.message_id, self.problem = projector, message_id, problem

    def __str__(self) -> str:
        return (
            f"the rebuild of projector {quoted(self.projector)} stopped at event {self.message_id}: {self.problem}; "
            f"fix the handler and rebuild again, or skip the event with --skip {self.message_id}"
        )


class AlreadyHandled(HoldfastError):
    """This consumer already applied this message. Let the exception roll back the effect."""

    def __init__(self, consumer: str, key: str) -> None:
        super().__init__(consumer, key)
        self.consumer, self.key = consumer, key

    def __str__(self) -> str:
        return (
            f"consumer {quoted(self.consumer)} has already handled {quoted(self.key)}; "
            "roll back, Holdfast then completes the delivery"
        )
