"""Runs a task in a worker: calls its function and sends Django's signals.

`task_finished` is sent when the outcome of the task is known, before it is committed: a worker that dies between
the two runs the task again and sends the signals again.
"""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.utils import timezone

from holdfast.core.change import DeadLetter, Discard
from holdfast.core.decide import decide
from holdfast.core.outcome import outcome_of
from holdfast.django.task_backend.api import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from holdfast.django.task_backend.stored_task import TaskCall, TaskInterrupted, task_error, with_options
from holdfast.engine.handlers.context import Context

if TYPE_CHECKING:
    from holdfast.django.app import DjangoHoldfast
    from holdfast.django.task_backend.declared_task import DeclaredTask


def task_function(app: "DjangoHoldfast", find: Callable[[], "DeclaredTask"], *, is_async: bool) -> Callable[..., Any]:
    """The function of the job that runs a task, async for an async task."""

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any], call: dict[str, Any]) -> Any:
        one = TaskRun(app, find(), ctx, args, kwargs, call)
        task_started.send_robust(one.sender, task_result=one.result)
        try:
            returned = one.finish(one.task.func(*one.positional, **kwargs))
        except BaseException as error:
            raised = _as_task_error(error)
            if one.fail(error, raised):
                task_finished.send_robust(one.sender, task_result=one.result)
            if raised is not error:
                raise raised from error
            raise
        task_finished.send_robust(one.sender, task_result=one.result)
        return returned

    async def run_async(ctx: Context, args: list[Any], kwargs: dict[str, Any], call: dict[str, Any]) -> Any:
        # It may read earlier attempts from the database.
        one = await sync_to_async(TaskRun)(app, find(), ctx, args, kwargs, call)
        await task_started.asend_robust(one.sender, task_result=one.result)
        try:
            returned = one.finish(await one.task.func(*one.positional, **kwargs))
        except BaseException as error:
            if one.fail(error, error):
                await task_finished.asend_robust(one.sender, task_result=one.result)
            raise
        await task_finished.asend_robust(one.sender, task_result=one.result)
        return returned

    return run_async if is_async else run


def _as_task_error(error: BaseException) -> BaseException:
    """The error that the worker gets. A `KeyboardInterrupt` in a thread comes from the task: signals reach the main thread only.

    The worker would end with it, as at Ctrl-C, and every worker that runs the task again.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is not threading.main_thread():
        return TaskInterrupted(str(error))
    return error


class TaskRun:
    """One run of a task, with the result that its context and the signals show."""

    def __init__(
        self,
        app: "DjangoHoldfast",
        declared: "DeclaredTask",
        ctx: Context,
        args: list[Any],
        kwargs: dict[str, Any],
        call: dict[str, Any],
    ) -> None:
        self._app, self._ctx = app, ctx
        self.task, self.sender = declared.task, type(declared.backend)
        now = timezone.now()
        earlier = None if ctx.attempt == 1 else declared.backend.get_result(str(ctx.message_id))
        self.result: Any = TaskResult(
            task=with_options(self.task, ctx.queue, cast("TaskCall", call)),
            id=str(ctx.message_id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=datetime.fromisoformat(call["enqueued_at"]),
            started_at=now if earlier is None else earlier.started_at,
            last_attempted_at=now,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=call["backend"],
            errors=[] if earlier is None else earlier.errors,
            worker_ids=[ctx.claim.worker] if earlier is None else earlier.worker_ids,
        )
        context = (TaskContext(task_result=self.result),) if self.task.takes_context else ()
        self.positional = (*context, *args)

    def finish(self, returned: Any) -> Any:
        """The returned value in the form that is stored; raises `TypeError` if JSON has none for it."""
        value = normalize_json(returned)
        object.__setattr__(self.result, "_return_value", value)
        self._end(TaskResultStatus.SUCCESSFUL)
        return value

    def fail(self, error: BaseException, raised: BaseException) -> bool:
        """Records the error; returns whether the task has failed permanently if the worker gets `raised`."""
        self.result.errors.append(task_error(error))
        handler = self._app.handlers[self._ctx.consumer]
        outcome = outcome_of(raised, handler.rules, self._app.rules)
        if not isinstance(decide(self._ctx.invocation, outcome, handler.retry, 0.5), DeadLetter | Discard):
            return False
        self._end(TaskResultStatus.FAILED)
        return True

    def _end(self, status: Any) -> None:
        object.__setattr__(self.result, "finished_at", timezone.now())
        object.__setattr__(self.result, "status", status)
