"""Handles of enqueued jobs: their progress and result, from any process."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, JobFailed, NotFound
from holdfast.core.events.validation import stored_value
from holdfast.core.identity import delivery_id
from holdfast.core.values.duration import Duration, format_duration
from holdfast.engine.execution.runner import CurrentRun, current_run
from holdfast.engine.handlers.handler import Handler, result_hint
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.completion import Completion, Deadline, Subject, Waits
from holdfast.runtime.runtime import Runtime
from holdfast.stores.admin.actions import cancel
from holdfast.stores.deliveries.progress import JobProgress, progress_of
from holdfast.stores.deliveries.result import DeliveryOutcome, outcomes
from holdfast.stores.messages.publish import Published
from holdfast.stores.operation import Operation

if TYPE_CHECKING:
    from holdfast.app.jobs.job import Job


class JobHandle(Published):
    """An enqueued job: the id of its message, whether this call created it, and its result.

    Only the id is needed to find it again, in any process: `job.handle(id)`, or `hf.result(id)`. `holdfast jobs show ID`
    takes it too; `holdfast deliveries show ID` takes the id of the delivery.
    """

    _job: "Job[Any, Any]"

    @classmethod
    def of(cls, published: Published, job: "Job[Any, Any]") -> "JobHandle":
        """The handle of a message of this job."""
        made = cls(*published)
        made._job = job
        return made

    def __reduce__(self) -> tuple[object, ...]:
        # Another process has another app: its job makes a handle from the id.
        return Published, (self.id, self.created)

    @property
    def sync(self) -> "SyncJobHandle":
        """The same methods, blocking."""
        return SyncJobHandle(self)

    async def result(self, *, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Waits until the job is done and returns its result, as the return annotation of its function describes it.

        The job needs `result=`, the time for which results are kept. Raises `JobFailed` if it is a dead letter or was
        cancelled, `TimeoutError` if it has not ended after `timeout`, and `NotFound` if the job or its result is not
        stored: not committed yet, or no longer kept.
        """
        return await self._job._runtime.completions.run(self._result(timeout))

    async def progress(self) -> JobProgress | None:
        """What the last run reported with `ctx.progress`: a fraction from 0 to 1, a note and the time.

        None if it reported nothing, before a run has started, and once the job is delivered. A job that waits for a retry or
        is a dead letter shows how far its last run came.
        """
        return await self._job._runtime.store.run(progress_of(delivery_id(self.id, self._job.name)))

    async def cancel(self, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None) -> bool:
        """Cancels the job, audited; false if it has ended or does not exist. Its result raises `JobFailed`.

        `conn` is any connection that `publish` accepts: the cancellation is part of its transaction. Without one it commits in a
        separate transaction; in a Django project it joins the open `atomic` block.

        A job that waits never runs. A running one can no longer complete: its async handler gets a `CancelledError` within a
        quarter of the worker's lease; a plain function runs to its end unless it reads `ctx.cancelled`.
        """
        return bool(await self._job._runtime.run(self._cancellation(actor, reason), conn, "handle.cancel"))

    def _cancellation(self, actor: str | None, reason: str | None) -> Operation[frozenset[UUID]]:
        job = self._job
        by = actor or f"app:{job._runtime.producer.source}"
        return cancel([delivery_id(self.id, job.name)], by, reason)

    def _result(self, timeout: Duration | None) -> Waits[Any]:
        job = self._job
        if job.handler.result is None:
            raise ConfigurationError(
                f"{job.handler.kind} {job.name} keeps no results; declare it with result=, such as result='1h'"
            )
        text = yield from wait_for_result(job._runtime, self.id, job.name, timeout)
        return stored_value(text, result_hint(job.function), f"the result of {job.name}")


class SyncJobHandle:
    """The blocking methods of a handle."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle = handle

    def cancel(self, *, conn: Any = AMBIENT, actor: str | None = None, reason: str | None = None) -> bool:
        """`JobHandle.cancel`, blocking."""
        change = self._handle._cancellation(actor, reason)
        return bool(self._handle._job._runtime.run_sync(change, conn, "handle.sync.cancel"))

    def progress(self) -> JobProgress | None:
        """`JobHandle.progress`, blocking."""
        job = self._handle._job
        return job._runtime.store.run_sync(progress_of(delivery_id(self._handle.id, job.name)))

    def result(self, *, timeout: Duration | None = None) -> Any:
        """`JobHandle.result`, blocking."""
        return self._handle._job._runtime.completions.run_sync(self._handle._result(timeout))


def wait_for_result(runtime: Runtime, id: UUID, consumer: str | None, timeout: Duration | None) -> Waits[str]:
    """The result of the delivery of a message as JSON text, once it has ended."""
    if not isinstance(id, UUID):
        raise ConfigurationError(f"id is {id!r}; pass the UUID that enqueue returned, or UUID(text) for a stored one")
    deadline, is_checked = Deadline(timeout), False
    while True:
        one = _choose(id, consumer, (yield outcomes(id)))
        if one.status is Status.DELIVERED and one.result is not None:
            return one.result
        if one.status is Status.DELIVERED:
            raise NotFound("result", id, _absent(runtime.handlers.get(one.consumer)))
        if one.status is Status.FAILED:
            state = "cancelled" if one.discarded else "failed"
            raise JobFailed(one.consumer, id, one.id, state, one.error_type, one.last_error)
        if not is_checked:
            _check_wait(runtime, one)
            is_checked = True
        if not (yield Completion(Subject.DELIVERY, one.id, deadline.left)):
            raise TimeoutError(
                f"{one.consumer} has not ended for message {id} after {timeout}: it is {one.status.replace('_', ' ')}; see "
                f"why with `holdfast deliveries show {one.id}`"
            )


def _choose(id: UUID, consumer: str | None, found: list[DeliveryOutcome]) -> DeliveryOutcome:
    some = [one for one in found if consumer in (None, one.consumer)]
    if not some:
        known = f"; it has deliveries for {', '.join(one.consumer for one in found)}" if found else ""
        raise NotFound(
            "message" if consumer is None else f"delivery to {consumer} of message",
            id,
            f"commit the transaction that published it first, or check the id and whether it was pruned{known}",
        )
    if len(some) > 1:
        raise ConfigurationError(
            f"message {id} has several consumers; name one, such as consumer={some[0].consumer!r} "
            f"({', '.join(sorted(one.consumer for one in some))})"
        )
    return some[0]


def _absent(handler: Handler | None) -> str:
    if handler is None:
        return "the delivery is done, and its result is not kept, or not any more"
    if handler.result is None:
        return f"{handler.name} is done and keeps no results; declare it with result=, such as result='1h'"
    return f"{handler.name} is done, and keeps results for {format_duration(handler.result)}"


def _check_wait(runtime: Runtime, one: DeliveryOutcome) -> None:
    """Rejects a wait of a handler for a delivery that cannot start before the handler ends."""
    running = current_run()
    if running is not None and (held := place_held(runtime, running, one.consumer, one.queue)) is not None:
        raise ConfigurationError(
            f"{running.consumer} cannot wait for the result of {one.consumer} (delivery {one.id}), which cannot start before "
            f"{running.consumer} ends, because {running.consumer} holds {held}; enqueue {one.consumer} to another "
            "queue, or write both as steps of a workflow"
        )


def place_held(runtime: Runtime, running: CurrentRun, consumer: str, queue: str | None) -> str | None:
    """What a run holds that a delivery of this consumer and queue needs before it can start; None if it holds nothing."""
    flow = None if (handler := runtime.handlers.get(consumer)) is None else handler.flow
    if queue == running.queue and queue in runtime.limited_queues:
        return f"a place of queue {queue}, whose limit {consumer} shares"
    if consumer == running.consumer and flow is not None and (flow.limit is not None or flow.is_sequenced):
        return f"a place of {consumer} itself, which has a limit or an order"
    if any(worker.has_one_slot(running.queue, queue) for worker in runtime.notifier.workers):
        return "the only slot of this worker"
    return None
