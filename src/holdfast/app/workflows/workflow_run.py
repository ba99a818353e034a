"""Handles of runs: commands to a run, and its result."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from holdfast.app.workflows.signal_types import check_signal
from holdfast.core.errors import WorkflowFailed
from holdfast.core.message import Address, NewMessage
from holdfast.core.values.duration import Duration
from holdfast.core.values.names import check_name
from holdfast.core.workflows.names import CANCEL, COMMANDS, start_type
from holdfast.core.workflows.state import StepState
from holdfast.engine.workflows.commands import RETRY, SIGNAL, TRIGGER
from holdfast.engine.workflows.declaration import WorkflowDeclaration
from holdfast.engine.workflows.fan_out import result_of
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.completion import Completion, Deadline, Subject, Waits
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.publish import Published
from holdfast.stores.workflows.fork import Origin
from holdfast.stores.workflows.query import RunDetail, workflow_run
from holdfast.stores.workflows.run import RunOutcome, RunStatus, run_outcome


class WorkflowRun:
    """A run of a workflow. Its commands are stored first and applied by a worker, once per key.

    They join the transaction of `conn`. Without it they commit at once in a separate transaction, or with Django in
    the open `atomic` block, as `start` does.

    `created` says whether this start created it; the same key returns the same run.
    """

    def __init__(
        self, runtime: Callable[[], Runtime], declaration: WorkflowDeclaration, id: UUID, *, created: bool = False
    ) -> None:
        self._runtime, self._declaration, self.id, self.created = runtime, declaration, id, created
        self.sync = SyncWorkflowRun(self)

    @property
    def workflow(self) -> str:
        """The name of the workflow."""
        return self._declaration.name

    def __repr__(self) -> str:
        return f"WorkflowRun({self.workflow!r}, {str(self.id)!r})"

    async def signal(
        self, name: str, value: object = None, *, conn: Any = AMBIENT, key: str | None = None
    ) -> Published:
        """Sends a signal to the run, in `conn`'s transaction; a repeated `key` sends nothing and returns the first
        signal.

        A step that waits for it gets `value`. A signal that no step waits for is kept for the next wait of this name.
        Raises `InvalidPayload` for a value that does not fit the type in the step's `ctx.wait(name, type)`.
        """
        return await self._send(self._signal(name, value, key), conn, "run.signal")

    async def trigger(self, step: str, *, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """Triggers a manual step; it starts when the steps before it are done."""
        return await self._send(self._trigger(step, key), conn, "run.trigger")

    async def cancel(self, reason: str | None = None, *, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """Cancels the run and its child runs: steps that wait are discarded, running ones can no longer complete.

        Undo steps do not run.
        """
        return await self._send(self._cancel(reason, key), conn, "run.cancel")

    async def retry(self, *, from_: str | None = None, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """Runs the step `from_` and all steps after it again; without `from_`, the steps that failed.

        Steps that were done before stay done. A step that failed keeps what it remembers. A deadline that has passed no
        longer applies.
        """
        return await self._send(self._retry(from_, key), conn, "run.retry")

    async def fork(self, *, from_: str, conn: Any = AMBIENT, key: str | None = None) -> "WorkflowRun":
        """Starts a new run with the same values and version that begins at the step `from_`, in `conn`'s transaction.

        Results of steps that are done are copied, except those of `from_`, of steps after it and of steps that were undone: these
        run in the fork. This run is not changed. A repeated `key` returns the first fork. Raises `Refused` for an unknown step,
        and for one whose earlier steps are not done.
        """
        published = await self._runtime().fork_run(self._fork_start(key), Origin(self.id, from_), conn)
        return self._fork(published)

    async def status(self) -> RunStatus:
        """The status of the run; raises `NotFound` if it does not exist."""
        return (await self._runtime().store.run(run_outcome(self.id))).status

    async def result(self, *, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Waits until the run is done and returns the result of its last step, or of each by name if it has several.

        Raises `WorkflowFailed` if it failed or was cancelled, and `TimeoutError` if it is still active after `timeout`; the error
        names a blocked step.
        """
        return await self._runtime().completions.run(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Waits[Any]:
        deadline = Deadline(timeout)
        outcome: RunOutcome = yield run_outcome(self.id)
        while outcome.status.is_active:
            if not (yield Completion(Subject.RUN, self.id, deadline.left)):
                raise TimeoutError(_unfinished((yield workflow_run(self.id)), timeout))
            outcome = yield run_outcome(self.id)
        if outcome.status is not RunStatus.DONE:
            raise WorkflowFailed(outcome.name, self.id, outcome.status.value, outcome.reason)
        return (yield from result_of(outcome, self._declaration))

    def _signal(self, name: str, value: object, key: str | None) -> NewMessage:
        check_signal(self._declaration, self._runtime().handlers, check_name("signal", name), value)
        return self._message(SIGNAL, key, signal=name, payload=value)

    def _trigger(self, step: str, key: str | None) -> NewMessage:
        return self._message(TRIGGER, key, step=step)

    def _cancel(self, reason: str | None, key: str | None) -> NewMessage:
        return self._message(CANCEL, key, reason=reason)

    def _retry(self, step: str | None, key: str | None) -> NewMessage:
        return self._message(RETRY, key, step=step)

    def _fork_start(self, key: str | None) -> NewMessage:
        type = start_type(self.workflow)
        return self._runtime().producer.build(type, {}, key=key, key_scope=type)

    def _fork(self, published: Published) -> "WorkflowRun":
        return WorkflowRun(self._runtime, self._declaration, published.id, created=published.created)

    def _message(self, type: str, key: str | None, **command: object) -> NewMessage:
        return self._runtime().producer.build(
            type,
            {"run": str(self.id), **command},
            key=key,
            key_scope=f"{type}:{self.id}",
            addressed=[Address(consumer=COMMANDS)],
        )

    async def _send(self, message: NewMessage, conn: Any, call: str) -> Published:
        return (await self._runtime().publish([message], conn, call))[0]


def _unfinished(found: RunDetail, timeout: Duration | None) -> str:
    """Why a run has no result yet, and the next command."""
    what = f"run {found.run.id} of workflow {found.run.workflow}"
    blocked = dict.fromkeys(step.name for step in found.steps if step.state is StepState.BLOCKED)
    if blocked:
        steps = f"step{'s' * (len(blocked) > 1)} {', '.join(blocked)}"
        return f"{what} is blocked at {steps}; fix the cause, then run `holdfast workflows retry {found.run.id}`"
    return f"{what} is {found.run.status} after {timeout}; see its steps with `holdfast workflows show {found.run.id}`"


class SyncWorkflowRun:
    """The blocking methods of a run."""

    def __init__(self, run: WorkflowRun) -> None:
        self._run = run

    def signal(self, name: str, value: object = None, *, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """`WorkflowRun.signal`, blocking."""
        return self._send(self._run._signal(name, value, key), conn, "run.signal")

    def trigger(self, step: str, *, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """`WorkflowRun.trigger`, blocking."""
        return self._send(self._run._trigger(step, key), conn, "run.trigger")

    def cancel(self, reason: str | None = None, *, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """`WorkflowRun.cancel`, blocking."""
        return self._send(self._run._cancel(reason, key), conn, "run.cancel")

    def retry(self, *, from_: str | None = None, conn: Any = AMBIENT, key: str | None = None) -> Published:
        """`WorkflowRun.retry`, blocking."""
        return self._send(self._run._retry(from_, key), conn, "run.retry")

    def fork(self, *, from_: str, conn: Any = AMBIENT, key: str | None = None) -> WorkflowRun:
        """`WorkflowRun.fork`, blocking."""
        run = self._run
        return run._fork(run._runtime().fork_run_sync(run._fork_start(key), Origin(run.id, from_), conn))

    def status(self) -> RunStatus:
        """`WorkflowRun.status`, blocking."""
        return self._run._runtime().store.run_sync(run_outcome(self._run.id)).status

    def result(self, *, timeout: Duration | None = None) -> Any:
        """`WorkflowRun.result`, blocking."""
        return self._run._runtime().completions.run_sync(self._run._result(timeout))

    def _send(self, message: NewMessage, conn: Any, call: str) -> Published:
        return self._run._runtime().publish_sync([message], conn, call)[0]
