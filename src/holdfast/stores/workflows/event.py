"""Events about runs, published in the transaction of the change that they report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from holdfast.core.events.payload import encode_many
from holdfast.core.identity import delivery_id
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewMessage, new_message
from holdfast.core.workflows.names import COMMANDS
from holdfast.stores.messages.alike import AlikeMessages
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import LazyMessages, insert_absent, publish
from holdfast.stores.operation import Steps
from holdfast.stores.workflows.run import RunStatus

_STREAMED = 20


@dataclass(frozen=True, slots=True)
class WorkflowEvents:
    """Publishes events about runs. `new_ids` creates the requested number of ids for their messages."""

    new_ids: Callable[[int], Sequence[UUID]]
    fanout: Fanout = field(default_factory=Fanout)

    def message(self, type: str, source: str, generation: int, **payload: object) -> NewMessage:
        """An event of the workflow engine; it has the source of the start message."""
        (id,) = self.new_ids(1)
        return new_message(id=id, type=type, source=source, payload=payload, generation=generation)

    def publish(self, *messages: Sequence[NewMessage]) -> Steps[None]:
        """Publishes events in the transaction of the operation that calls it."""
        # Many are streamed: an insert per row takes longer on SQLite, because each one hands over the interpreter's lock.
        streamed = sum(map(len, messages)) >= _STREAMED
        given = LazyMessages(lambda: iter(messages)) if streamed else [one for part in messages for one in part]
        yield from publish(given, self.fanout).start()


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
    alike: dict[tuple[str, str, int], list[EndedRun]] = {}
    for run in ended:
        alike.setdefault((run.status, run.source, run.generation), []).append(run)
    parts = [_ends(runs, events) for runs in alike.values()]
    yield from events.publish(*parts)
    # A run that is retried ends again, and each end needs its own delivery.
    children = [
        (
            delivery_id(run.run_id, f"{COMMANDS}:{event}"),
            run.run_id,
            COMMANDS,
            DEFAULT_QUEUE,
            DEFAULT_PRIORITY,
            run.generation,
        )
        for runs, part in zip(alike.values(), parts, strict=True)
        for run, event in zip(runs, part.ids, strict=True)
        if run.parent_run is not None
    ]
    if children:
        yield insert_absent(children)


def _ends(runs: Sequence[EndedRun], events: WorkflowEvents) -> AlikeMessages:
    """The events of runs with the same status, source and generation, as columns: one by one they take almost three times as long."""
    first, ids = runs[0], events.new_ids(len(runs))
    payloads = [{"run": str(run.run_id), "workflow": run.name, "reason": run.reason} for run in runs]
    like = new_message(
        id=ids[0],
        type=f"workflow.{first.status}",
        source=first.source,
        payload=payloads[0],
        generation=first.generation,
    )
    return AlikeMessages(like, ids, encode_many(payloads, ids[0].hex))
