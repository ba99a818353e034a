"""Errors about operator actions: the item does not exist, or its state does not allow the action."""

from __future__ import annotations

from uuid import UUID

from holdfast.core.errors.root import HoldfastError, picklable, quoted


class NotFound(HoldfastError):
    """The requested item does not exist in this store."""

    def __init__(self, what: str, id: object, hint: str = "check the id and whether it was pruned") -> None:
        self.what, self.id, self.hint = what, picklable(id), hint
        super().__init__(what, self.id, hint)

    def __str__(self) -> str:
        return f"no {self.what} {quoted(self.id)} in this store; {self.hint}"


class Refused(HoldfastError):
    """The current state of the item does not allow the action. Nothing changed."""

    def __init__(self, action: str, item: str, state: str, remedy: str = "") -> None:
        super().__init__(action, item, state, remedy)
        self.action, self.item, self.state, self.remedy = action, item, state, remedy

    def __str__(self) -> str:
        text = f"cannot {self.action} {self.item}: it is {self.state}"
        return f"{text}; {self.remedy}" if self.remedy else text


class JobFailed(HoldfastError):
    """The delivery ended without a result: it is a dead letter, or it was cancelled (`state`).

    `error_type` and `error` describe its last error; `holdfast deliveries show` has the traceback.
    """

    def __init__(
        self,
        consumer: str,
        message_id: UUID,
        delivery_id: UUID,
        state: str,
        error_type: str | None = None,
        error: str | None = None,
    ) -> None:
        super().__init__(consumer, message_id, delivery_id, state, error_type, error)
        self.consumer, self.message_id, self.delivery_id, self.state = consumer, message_id, delivery_id, state
        self.error_type, self.error = error_type, error

    def __str__(self) -> str:
        how = "failed" if self.state == "failed" else f"was {self.state}"
        why = ": ".join(filter(None, (self.error_type, self.error)))
        return (
            f"{quoted(self.consumer)} {how} for message {self.message_id}{': ' if why else ''}{why}; see its traceback with "
            f"`holdfast deliveries show {self.delivery_id}`"
        )


class WorkflowFailed(HoldfastError):
    """The run ended without a result: it failed, or it was cancelled."""

    def __init__(self, workflow: str, run_id: UUID, status: str, reason: str | None) -> None:
        super().__init__(workflow, run_id, status, reason)
        self.workflow, self.run_id, self.status, self.reason = workflow, run_id, status, reason

    def __str__(self) -> str:
        how = "failed" if self.status == "failed" else f"was {self.status}"
        why = f": {self.reason}" if self.reason else ""
        return (
            f"run {self.run_id} of workflow {quoted(self.workflow)} {how}{why}; see its steps with `holdfast workflows show "
            f"{self.run_id}`"
        )
