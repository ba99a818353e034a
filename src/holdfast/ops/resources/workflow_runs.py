"""Commands to runs of workflows. Each is stored as a message first, and a worker applies it once."""

import difflib
import re
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from holdfast.core.errors import InvalidPayload, NotFound, Refused
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.values.names import check_name
from holdfast.core.workflows.graph import Graph, nearest_step
from holdfast.core.workflows.names import COMMANDS, start_type, step_consumer
from holdfast.core.workflows.state import StepState
from holdfast.ops.plans import replay
from holdfast.ops.queries.messages import OPERATOR, fresh_id
from holdfast.ops.queries.workflows import AUDITED, run_id
from holdfast.ops.steps import SignalCheck, TaskSteps, call_store, transact
from holdfast.stores.admin.actions import audited, live_generation, record
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, find_first, publish
from holdfast.stores.messages.registry import consumers
from holdfast.stores.operation import Steps, operation
from holdfast.stores.workflows.definition import newest_definition
from holdfast.stores.workflows.fork import Origin
from holdfast.stores.workflows.fork import fork_run as fork
from holdfast.stores.workflows.query import RunDetail, workflow_run
from holdfast.stores.workflows.run import NewRun, RunStatus, start_runs
from holdfast.stores.workflows.run_page import workflow_counts

_SIMILAR = 0.8
_DIGITS = re.compile(r"\d+")


def start_run(
    workflow: str,
    arguments: Mapping[str, object],
    *,
    actor: str,
    reason: str | None = None,
    key: str | None = None,
    deadline: timedelta | None = None,
) -> TaskSteps[Published]:
    """Starts a run of the newest declared version with the values that its steps take; audited.

    A repeated key starts nothing and returns the first run. Raises `InvalidPayload` for an unknown or a missing value; a worker checks
    the types.
    """
    graph = yield from transact(newest_definition(workflow))
    if graph is None:
        names = ", ".join(one.workflow for one in (yield from transact(workflow_counts()))[:20]) or "none yet"
        raise NotFound("workflow", workflow, f"known: {names}; a workflow is registered when an app with it starts")
    _check_values(graph, arguments)
    known = {one.name: one for one in (yield from transact(consumers()))}
    addressed = []
    generation = 0
    for step in graph.first:
        name = step_consumer(workflow, step)
        row = known.get(name)
        address = Address(consumer=name, queue=row.queue, priority=row.priority) if row else Address(consumer=name)
        live = yield from transact(live_generation(name, address.queue))
        generation = max(generation, live if live is not None else row.generation if row else 0)
        addressed.append(address)
    message = new_message(
        id=(yield from fresh_id()),
        type=start_type(workflow),
        source=OPERATOR,
        payload=dict(arguments),
        key=key,
        key_scope=start_type(workflow),
        generation=generation,
        addressed=addressed,
    )
    run = NewRun(message, workflow, graph.version, len(graph.last), deadline=deadline)
    published = yield from transact(_start_audited(run, actor, reason))
    yield from call_store(lambda store: store.hint_sync())
    return published


def signal_run(
    id: UUID | str,
    *,
    actor: str,
    signal: str,
    payload: object = None,
    reason: str | None = None,
    key: str | None = None,
    force: bool = False,
    check_signal: SignalCheck = lambda workflow, signal, payload: None,
) -> TaskSteps[bool]:
    """Stores a signal for an active run; false if the key was used before. A worker delivers it to a step that waits.

    Raises `Refused` for a name that differs slightly from that of a signal that the run waits for, and `InvalidPayload` for a
    payload that does not fit the type in the app's `ctx.wait(name, type)`, unless `force` is set.
    """
    found = yield from transact(workflow_run(run_id(id)))
    command = {"signal": check_name("signal", signal), "payload": payload}
    message = yield from _command("signal", found.run.id, command, key)
    if (yield from _is_repeated(message, found, "signal")):
        return False
    if not force:
        _check_signal(found, signal)
        check_signal(found.run.workflow, signal, payload)
    return (yield from _store_command(message, found.run.id, "signal", {"signal": signal}, actor, reason))


def trigger_run(
    id: UUID | str, *, actor: str, step: str, reason: str | None = None, key: str | None = None
) -> TaskSteps[bool]:
    """Stores the trigger of a manual step of an active run; false if the key was used before."""
    found = yield from transact(workflow_run(run_id(id)))
    message = yield from _command("trigger", found.run.id, {"step": step}, key)
    if (yield from _is_repeated(message, found, "trigger")):
        return False
    _check_manual(found.graph, step, found.run.id)
    return (yield from _store_command(message, found.run.id, "trigger", {"step": step}, actor, reason))


def cancel_run(id: UUID | str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Stores the cancellation of an active run and its child runs; a worker applies it. Undo steps do not run."""
    found = yield from transact(workflow_run(run_id(id)))
    message = yield from _command("cancel", found.run.id, {"reason": reason}, None)
    yield from _is_repeated(message, found, "cancel")
    return (yield from _store_command(message, found.run.id, "cancel", {}, actor, reason))


def retry_run(id: UUID | str, *, actor: str, reason: str | None = None, step: str | None = None) -> TaskSteps[bool]:
    """Runs the failed steps of a run again, or a step and all after it; false if no step failed.

    The blocked steps of an active run, also undo steps, are replayed at once. Everything else is a stored command that a
    worker applies.
    """
    found = yield from transact(workflow_run(run_id(id)))
    known = [one.name for one in found.steps]
    if step is not None and step not in known:
        raise Refused("retry", f"step {step} of run {found.run.id}", "unknown", nearest_step(step, known))
    blocked = [one for one in found.steps if one.state is StepState.BLOCKED and step in (None, one.name)]
    if blocked:
        yield from replay([one.delivery_id for one in blocked if one.delivery_id], actor=actor, reason=reason)
        detail = {"steps": [one.name for one in blocked]}
        yield from transact(record(actor, "retry", AUDITED, str(found.run.id), reason, detail))
        return True
    if found.run.status is RunStatus.COMPENSATING:
        raise Refused("retry", f"run {found.run.id}", "being compensated", "wait until its undo steps are done")
    if step is None and found.run.status in (RunStatus.RUNNING, RunStatus.DONE):
        return False
    if step is not None:
        _check_retried(found, step)
    message = yield from _command("retry", found.run.id, {"step": step}, None)
    return (yield from _store_command(message, found.run.id, "retry", {"step": step}, actor, reason))


def fork_run(
    id: UUID | str, *, actor: str, step: str, reason: str | None = None, key: str | None = None
) -> TaskSteps[Published]:
    """Starts a new run of the same version that begins at a step, with the results of the steps before it; audited for both.

    A repeated key starts nothing and returns the first fork. Raises `Refused` for an unknown step, and for one that was not reached.
    """
    found = (yield from transact(workflow_run(run_id(id)))).run
    type = start_type(found.workflow)
    start = new_message(id=(yield from fresh_id()), type=type, source=OPERATOR, payload={}, key=key, key_scope=type)
    published = yield from transact(_fork_audited(start, Origin(found.id, step), actor, reason))
    yield from call_store(lambda store: store.hint_sync())
    return published


def _check_values(graph: Graph, arguments: Mapping[str, object]) -> None:
    """Refuses values that no step takes, and a start without a value that a step needs."""
    nodes = graph.nodes.values()
    if any(node.takes is None for node in nodes):
        return
    takes = {name for node in nodes for name in node.takes or ()}
    if unknown := sorted(arguments.keys() - takes):
        hint = f"it takes {', '.join(sorted(takes)) or 'no values'}"
        raise InvalidPayload(f"$.{unknown[0]}", f"workflow {graph.workflow} has no such parameter; {hint}")
    if missing := sorted({name for node in nodes for name in node.needs} - arguments.keys()):
        raise InvalidPayload(f"$.{missing[0]}", f"workflow {graph.workflow} needs this parameter")


def _is_repeated(message: NewMessage, found: RunDetail, action: str) -> TaskSteps[bool]:
    """Whether this command of a run that has ended was stored before, under its key.

    Raises `Refused` for a new one. The repetition of a command that was applied is no mistake: its first reply may be lost.
    """
    if found.run.status.is_active:
        return False
    if message.key is not None and (yield from transact(_stored_before(message))):
        return True
    raise Refused(action, f"run {found.run.id}", found.run.status.value)


@operation(reads=True)
def _stored_before(message: NewMessage) -> Steps[bool]:
    return bool((yield from find_first([message])))


def _check_signal(found: RunDetail, signal: str) -> None:
    """Refuses a name that is probably misspelled. Any other one may be for a later wait."""
    known = {one.signal for one in found.remembered if one.signal is not None}
    waiting = [one.signal for one in found.remembered if one.signal is not None and one.done_at is None]
    near = difflib.get_close_matches(signal, waiting, n=1, cutoff=_SIMILAR)
    # Names that differ only in a number are different signals.
    if signal in known or not near or _DIGITS.sub("", signal) == _DIGITS.sub("", near[0]):
        return
    raise Refused(
        "signal",
        f"run {found.run.id}",
        f"not waiting for {signal}",
        f"did you mean {near[0]}? If {signal} is for a later wait, send it with force (--force on the command line)",
    )


def _check_retried(found: RunDetail, step: str) -> None:
    """Refuses a step that a retry cannot start with, so that no command is stored that a worker would refuse."""
    what = f"step {step} of run {found.run.id}"
    node = None if found.graph is None else found.graph.nodes.get(step)
    if node is None or node.mapped:
        does = "runs only for the items of a map" if node else "undoes another step"
        raise Refused("retry", what, f"a step that {does}", "retry the step that started it")
    state = next(one.state for one in found.steps if one.name == step)
    if found.run.status is RunStatus.RUNNING and state is StepState.IDLE:
        raise Refused("retry", what, "not reached yet", "wait for the steps before it")


def _check_manual(graph: Graph | None, step: str, id: UUID) -> None:
    if graph is None:
        return
    node = graph.nodes.get(step)
    if node is None:
        manual = [one.name for one in graph.nodes.values() if one.manual]
        remedy = nearest_step(step, manual, "manual steps") if manual else "none of its steps is manual"
        raise Refused("trigger", f"step {step} of run {id}", "unknown", remedy)
    if not node.manual:
        raise Refused(
            "trigger", f"step {step} of run {id}", "not manual", "it starts when the steps before it are done"
        )


def _command(action: str, id: UUID, command: Mapping[str, object], key: str | None) -> TaskSteps[NewMessage]:
    return new_message(
        id=(yield from fresh_id()),
        type=f"workflow.{action}",
        source=OPERATOR,
        payload={"run": str(id), **command},
        key=key,
        key_scope=f"workflow.{action}:{id}",
        addressed=[Address(consumer=COMMANDS)],
    )


def _store_command(
    message: NewMessage, id: UUID, action: str, detail: Mapping[str, object], actor: str, reason: str | None
) -> TaskSteps[bool]:
    created = yield from transact(_command_audited(message, id, actor, action, reason, detail))
    yield from call_store(lambda store: store.hint_sync())
    return created


@operation
def _command_audited(
    message: NewMessage, id: UUID, actor: str, action: str, reason: str | None, detail: Mapping[str, object]
) -> Steps[bool]:
    """Stores a command and its audit entry in one transaction; a duplicate key stores neither."""
    (published,) = yield from publish([message], Fanout()).start()
    if published.created:
        yield audited(actor, action, AUDITED, str(id), reason, {**detail, "message": str(published.id)})
    return published.created


@operation
def _start_audited(run: NewRun, actor: str, reason: str | None) -> Steps[Published]:
    """Starts a run with its audit entry in one transaction; a duplicate key stores neither."""
    (published,) = yield from start_runs([run]).start()
    if published.created:
        yield audited(actor, "start", AUDITED, str(published.id), reason, {"workflow": run.name})
    return published


@operation
def _fork_audited(start: NewMessage, origin: Origin, actor: str, reason: str | None) -> Steps[Published]:
    """Forks a run with an audit entry for each of both runs in one transaction; a duplicate key stores nothing."""
    published = yield from fork(start, origin).start()
    if published.created:
        detail = {"step": origin.step, "from": str(origin.run_id), "fork": str(published.id)}
        for run in (origin.run_id, published.id):
            yield audited(actor, "fork", AUDITED, str(run), reason, detail)
    return published
