"""Events about runs, published in the transaction of the change that they report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from holdfast.core.identity import delivery_id
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewMessage, new_message
from holdfast.core.workflows.names import COMMANDS
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import LazyMessages, insert_absent, publish
from holdfast.stores.operation import Steps
from holdfast.stores.workflows.run import RunStatus

_STREAMED = 20


@dataclass(frozen=True, slots=True)
class WorkflowEvents:
    """Publishes events about runs. `new_id` makes the ids of their messages."""

    new_id: Callable[[], UUID]
    fanout: Fanout = field(default_factory=Fanout)

    def message(self, type: str, source: str, generation: int, **payload: object) -> NewMessage:
        """An event of the workflow engine; it has the source of the start message."""
        return new_message(id=self.new_id(), type=type, source=source, payload=payload, generation=generation)

    def publish(self, messages: Sequence[NewMessage]) -> Steps[None]:
        """Publishes events in the transaction of the operation that calls it."""
        # Many are streamed: an insert per row takes longer on SQLite, because each one hands over the interpreter's lock.
        streamed = len(messages) >= _STREAMED
        yield from publish(LazyMessages(lambda: iter([messages])) if streamed else messages, self.fanout).start()


class EndedRun(NamedTuple):
    """A run that this transaction ended."""

    run_id: UUID
    status: RunStatus
    name: str
    parent_run: UUID | None
    reason: str | None
    source: str
    generation: int


def announce(ended: Sequence[EndedRun], events: WorkflowEvents) -> Steps[None]:
    """Publishes the end of each run, and gives the end of a child to the consumer that wakes its parent.

    The parent is not changed here: two runs would be locked in one transaction.
    """
    if not ended:
        return
    published = [
        events.message(
            f"workflow.{run.status}",
            run.source,
            run.generation,
            run=str(run.run_id),
            workflow=run.name,
            reason=run.reason,
        )
        for run in ended
    ]
    yield from events.publish(published)
    # A run that is retried ends again, and each end needs its own delivery.
    children = [
        (
            delivery_id(run.run_id, f"{COMMANDS}:{event.id}"),
            run.run_id,
            COMMANDS,
            DEFAULT_QUEUE,
            DEFAULT_PRIORITY,
            run.generation,
        )
        for run, event in zip(ended, published, strict=True)
        if run.parent_run is not None
    ]
    if children:
        yield insert_absent(children)
