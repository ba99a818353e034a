"""Handles of groups: progress, jobs, result and cancellation, from any process."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from holdfast.app.jobs.job_handle import place_held, wait_for_result
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.events.payload import decode
from holdfast.core.events.validation import stored_value
from holdfast.core.values.duration import Duration
from holdfast.engine.execution.runner import CurrentRun, current_run
from holdfast.engine.handlers.handler import result_hint
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.completion import Waits
from holdfast.runtime.runtime import Runtime
from holdfast.stores.groups.group import cancel_group
from holdfast.stores.groups.query import (
    GroupMember,
    GroupProgress,
    UnfinishedMember,
    group_members,
    group_progress,
    last_member,
    unfinished_members,
)
from holdfast.stores.operation import Operation

_PAGE = 1000


class GroupHandle:
    """An enqueued group or chain. Only the id is needed to find it again, in any process: `hf.group_handle(id)`.

    `created` says whether this call created it; the same key returns the same group.
    """

    def __init__(self, runtime: Callable[[], Runtime], id: UUID, *, created: bool = False) -> None:
        self._runtime, self.id, self.created = runtime, id, created

    def __repr__(self) -> str:
        return f"GroupHandle({str(self.id)!r})"

    @property
    def sync(self) -> "SyncGroupHandle":
        """The same methods, blocking."""
        return SyncGroupHandle(self)

    async def result(self, *, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Waits for the last job and returns its result, as the return annotation of its function describes it.

        That job needs `result=`. Raises `JobFailed` if it is a dead letter or was cancelled or skipped, `TimeoutError` if it
        has not ended after `timeout`.
        """
        return await self._runtime().completions.run(self._result(timeout))

    async def progress(self) -> GroupProgress:
        """The jobs of the group by state, in total and by stage."""
        return await self._runtime().store.run(group_progress(self.id))

    async def members(self, *, stage: int = 0, start: int = 0, limit: int = _PAGE) -> list[GroupMember]:
        """Jobs of a stage with their state, error and result (as JSON values), from position `start` on."""
        return _decoded(await self._runtime().store.run(self._members(stage, start, limit)))

    async def cancel(self, reason: str | None = None, *, conn: Any = AMBIENT, actor: str = "app") -> int:
        """Cancels the jobs of the group that have not ended, audited; returns their number.

        `conn` is as for `JobHandle.cancel`.

        Running jobs can no longer complete; effects that they already had stay.
        """
        return await self._runtime().run(cancel_group(self.id, actor, reason), conn, "group_handle.cancel")

    def _members(self, stage: int, start: int, limit: int) -> Operation[list[GroupMember]]:
        if not 1 <= limit <= _PAGE:
            raise ConfigurationError(f"limit is {limit}; a page has 1 to {_PAGE} jobs, read the next page with start=")
        return group_members(self.id, stage, start, limit)

    def _result(self, timeout: Duration | None) -> Waits[Any]:
        runtime = self._runtime()
        last = yield last_member(self.id)
        if last is None:
            raise NotFound("group", self.id, "commit the transaction that enqueued it first, or check the id")
        stage, message_id, consumer = last
        if stage == 0:
            raise ConfigurationError(
                f"group {self.id} has no job that runs after the others; add one with .then(...), or read the results of its "
                "jobs with members()"
            )
        handler = runtime.handlers.get(consumer)
        if handler is not None and handler.result is None:
            raise ConfigurationError(f"job {consumer} keeps no results; declare it with result=, such as result='1h'")
        if (running := current_run()) is not None:
            for one in (yield unfinished_members(self.id, running.message_id)):
                _check_wait(runtime, running, self.id, one)
        text = yield from wait_for_result(runtime, message_id, consumer, timeout)
        hint = Any if handler is None else result_hint(handler.function)
        return stored_value(text, hint, f"the result of {consumer}")


class SyncGroupHandle:
    """The blocking methods of a handle of a group."""

    def __init__(self, handle: GroupHandle) -> None:
        self._handle = handle

    def result(self, *, timeout: Duration | None = None) -> Any:
        """`GroupHandle.result`, blocking."""
        return self._handle._runtime().completions.run_sync(self._handle._result(timeout))

    def progress(self) -> GroupProgress:
        """`GroupHandle.progress`, blocking."""
        return self._handle._runtime().store.run_sync(group_progress(self._handle.id))

    def members(self, *, stage: int = 0, start: int = 0, limit: int = _PAGE) -> list[GroupMember]:
        """`GroupHandle.members`, blocking."""
        return _decoded(self._handle._runtime().store.run_sync(self._handle._members(stage, start, limit)))

    def cancel(self, reason: str | None = None, *, conn: Any = AMBIENT, actor: str = "app") -> int:
        """`GroupHandle.cancel`, blocking."""
        change = cancel_group(self._handle.id, actor, reason)
        return self._handle._runtime().run_sync(change, conn, "group_handle.sync.cancel")


def _check_wait(runtime: Runtime, running: CurrentRun, id: UUID, one: UnfinishedMember) -> None:
    """Rejects a wait of a handler for a group that cannot end before the handler does."""
    if one.is_own:
        held, remedy = "is a job of the group", "let the job in .then(...) use the result"
    elif (place := place_held(runtime, running, one.consumer, one.queue)) is not None:
        held, remedy = (
            f"holds {place}",
            f"enqueue {one.consumer} to another queue, or write both as steps of a workflow",
        )
    else:
        return
    raise ConfigurationError(
        f"{running.consumer} cannot wait for the result of group {id}, which cannot end before {running.consumer} "
        f"ends, because {running.consumer} {held}; {remedy}"
    )


def _decoded(members: list[GroupMember]) -> list[GroupMember]:
    return [one if one.result is None else one._replace(result=decode(one.result)) for one in members]
