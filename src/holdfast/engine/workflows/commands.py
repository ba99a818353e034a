"""The consumer that applies signals, triggers, cancellations and retries, and reports the end of a child run to its parent."""

from typing import Any
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.core.errors import NotFound, Refused, TerminalError
from holdfast.core.failures.classify import Rules
from holdfast.core.message import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.core.retry import RetryPolicy
from holdfast.core.workflows.names import COMMANDS, is_start
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.engine.workflows.settler import new_events
from holdfast.stores.workflows.failure import cancel_run, trigger_step
from holdfast.stores.workflows.retry import retry_run
from holdfast.stores.workflows.wait import report_child, send_signal

log = get_logger("holdfast.worker")

SIGNAL, TRIGGER, RETRY = "workflow.signal", "workflow.trigger", "workflow.retry"


async def apply_command(ctx: Context, command: dict[str, Any]) -> None:
    """Applies one command to its run. A command that the run refuses, or whose run does not exist, is a dead letter."""
    store = ctx._store
    if is_start(ctx.type):
        # The start message of a child run: the child has ended.
        await store.run(report_child(ctx.message_id))
        return
    run_id = UUID(str(command["run"]))
    try:
        match ctx.type:
            case "workflow.signal":
                text = orjson.dumps(command.get("payload")).decode()
                if not await store.run(send_signal(ctx.message_id, run_id, str(command["signal"]), text)):
                    log.info("signal ignored", run=str(run_id), signal=command["signal"])
            case "workflow.trigger":
                await store.run(trigger_step(run_id, str(command["step"]), new_events()))
            case "workflow.cancel":
                await store.run(cancel_run(run_id, command.get("reason"), new_events()))
            case "workflow.retry":
                step = command.get("step")
                await store.run(retry_run(run_id, None if step is None else str(step), new_events()))
            case other:
                raise TerminalError(f"{other} is not a command to a run; use a release of Holdfast that knows it")
    except (NotFound, Refused) as error:
        raise TerminalError(str(error)) from error


def command_handler() -> Handler:
    """The handler of commands; every app with workflows has it."""
    return Handler(
        name=COMMANDS,
        kind=Kind.JOB,
        function=apply_command,
        queue=DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY,
        # Each worker that dies with a command spends an attempt, and without the command a parent waits forever.
        retry=RetryPolicy.exponential(attempts=100, base=0.2, cap="1m"),
        rules=Rules(),
        takes_context=True,
    )
