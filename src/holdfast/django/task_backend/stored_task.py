"""Reads the result of a task from its message, its delivery and the recorded runs."""

from dataclasses import replace
from datetime import datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from holdfast.core.delivery import Delivery, Status
from holdfast.core.events.payload import decode
from holdfast.core.message import Message
from holdfast.core.values.text import type_name
from holdfast.django.task_backend.api import TaskError, TaskResult, TaskResultStatus
from holdfast.stores.deliveries.result import result_of
from holdfast.stores.operation import Steps, operation
from holdfast.stores.queries.query import Run, deliveries_of, messages, runs

if TYPE_CHECKING:
    from holdfast.django.task_backend.declared_task import DeclaredTasks

_JOB = "job."
_STATUSES = {
    Status.PENDING: TaskResultStatus.READY,
    Status.IN_FLIGHT: TaskResultStatus.RUNNING,
    Status.DELIVERED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
}


class TaskInterrupted(Exception):
    """A task raised `KeyboardInterrupt`, which Django shows as the error."""


class TaskCall(TypedDict):
    """The options of one call of a task, as they are stored with it. Times are ISO 8601."""

    priority: int
    run_after: str | None
    backend: str
    enqueued_at: str


_INTERRUPTED = type_name(TaskInterrupted)


class StoredTask(NamedTuple):
    """A task as it is stored. `returned` is JSON text, None if the task has not ended or its result is not kept any more."""

    message: Message
    delivery: Delivery
    runs: list[Run]
    returned: str | None


@operation(reads=True)
def read_task(id: UUID) -> Steps[StoredTask | None]:
    """The task that a message stores; None if there is none."""
    found = yield from messages(id=id).start()
    if not found or not found[0].type.startswith(_JOB):
        return None
    name = found[0].type.removeprefix(_JOB)
    deliveries = [one.delivery for one in (yield from deliveries_of(id).start()) if one.delivery.consumer == name]
    if not deliveries or set(found[0].data) != {"args", "kwargs", "call"}:
        return None
    (delivery,) = deliveries
    recorded = yield from runs(delivery.id).start()
    kept = (yield from result_of(delivery.id).start()) if delivery.status is Status.DELIVERED else None
    return StoredTask(found[0], delivery, recorded, None if kept is None else kept.result)


def task_result(stored: StoredTask, declared: "DeclaredTasks") -> Any:
    """The stored task as a `TaskResult` of Django; raises `ConfigurationError` if its task is not declared here."""
    delivery, data = stored.delivery, stored.message.data
    call: TaskCall = data["call"]
    task = declared.find(delivery.consumer).task
    workers = [run.worker for run in stored.runs]
    if delivery.locked_by is not None:
        workers.append(delivery.locked_by)
    starts = [run.started_at for run in stored.runs if run.started_at is not None]
    is_finished = delivery.status in (Status.DELIVERED, Status.FAILED)
    result = TaskResult(
        task=with_options(task, delivery.queue, call),
        id=str(stored.message.id),
        status=_STATUSES[delivery.status],
        enqueued_at=datetime.fromisoformat(call["enqueued_at"]),
        started_at=_local(starts[0] if starts else delivery.claimed_at),
        last_attempted_at=_local(delivery.claimed_at),
        finished_at=_local(delivery.completed_at) if is_finished else None,
        args=data["args"],
        kwargs=data["kwargs"],
        backend=call["backend"],
        errors=[_stored_error(run) for run in stored.runs if run.error_type is not None],
        worker_ids=workers,
    )
    if stored.returned is not None:
        object.__setattr__(result, "_return_value", decode(stored.returned))
    return result


def with_options(task: Any, queue: str, call: TaskCall) -> Any:
    """The declared task with the options of one call."""
    at = None if call["run_after"] is None else datetime.fromisoformat(call["run_after"])
    return replace(task, priority=call["priority"], queue_name=queue, backend=call["backend"], run_after=at)


def task_error(error: BaseException) -> Any:
    """An error of this run, as Django shows it."""
    return TaskError(
        exception_class_path=_class_path(type_name(type(error))), traceback="".join(format_exception(error))
    )


def _stored_error(run: Run) -> Any:
    name = "KeyboardInterrupt" if run.error_type == _INTERRUPTED else str(run.error_type)
    return TaskError(exception_class_path=_class_path(name), traceback=run.trace or run.error or "")


def _class_path(name: str) -> str:
    return name if "." in name else f"builtins.{name}"


def _local(at: datetime | None) -> datetime | None:
    """A time as the project stores times: aware, or naive with `USE_TZ = False`."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)
