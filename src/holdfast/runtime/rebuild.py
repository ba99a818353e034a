"""Rebuilds a projector with its own handler."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

from holdfast.core.change import Deliver, Discard
from holdfast.core.decide import budget, decide
from holdfast.core.errors import EncryptionKeyMissing, RebuildStopped, TerminalError
from holdfast.core.events.event import NewerVersion
from holdfast.core.message import Message
from holdfast.core.outcome import error_of
from holdfast.core.redaction.redact import hiding
from holdfast.engine.execution.invocation import MessageInvocation
from holdfast.engine.execution.runner import FinishedRun, Runner
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.context import IDLE_TIMEOUT, Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.worker.options import instance_id
from holdfast.projections.rebuild import Rebuild, RebuildRequest, RebuildTarget, Rebuilt
from holdfast.runtime.runtime import Runtime
from holdfast.stores.deliveries.settle import ClaimState
from holdfast.stores.event_log.log import EventFilter
from holdfast.stores.event_log.projection import RebuildStep, checkpoint, reached
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

_LONGEST_WAIT = timedelta(minutes=1)
_WAITS = (NewerVersion, EncryptionKeyMissing)
"""Errors that only another worker can resolve."""


async def rebuild_projector(runtime: Runtime, handler: Handler, request: RebuildRequest) -> Rebuilt:
    """Rebuilds one projector."""
    assert handler.reset is not None
    runner = ProjectorRunner(runtime, handler, request.lease)
    target = RebuildTarget(
        name=handler.name,
        wanted=EventFilter(handler.patterns),
        apply=runner.apply,
        reset=handler.reset,
        swap=handler.swap,
    )
    try:
        return await Rebuild(runtime.store, target, instance_id(), request).run()
    finally:
        runner.close()


class _Silent:
    """The publisher of a rebuild: it must not publish anything a second time."""

    @property
    def sync(self) -> "_Silent":
        return self

    def publish(self, *_: object, **__: object) -> NoReturn:
        raise TerminalError(
            "a projector published during a rebuild, which would publish the same events again; publish only "
            "`if not ctx.rebuilding`"
        )


class _RebuildContext(Context):
    """The context of a rebuilt event: `complete` moves the rebuild's checkpoint in the same transaction."""

    __slots__ = ("_lease", "step")

    rebuilding = True

    def __init__(
        self, invocation: MessageInvocation, store: Store, attempts: int, step: RebuildStep, lease: timedelta
    ) -> None:
        super().__init__(invocation, step.held.owner, store, _Silent(), attempts)
        self.step, self._lease = step, lease

    def _completion(self, key: str | None) -> Operation[None]:
        if key is not None:
            raise TerminalError(
                f"projector {self.consumer} calls ctx.complete with key=, but the key was handled when the event "
                "first ran; leave key= out"
            )
        return checkpoint(self.step, self._lease, IDLE_TIMEOUT)


class ProjectorRunner:
    """Runs a projector's handler for one event after another, by its retry policy."""

    def __init__(self, runtime: Runtime, handler: Handler, lease: timedelta) -> None:
        self._runtime, self._lease = runtime, lease
        # The dedupe window has seen all of these events; they must be applied anyway.
        self._handler = replace(handler, dedupe=None)
        self._threads = Threads("holdfast-rebuild")
        self._runner = Runner(runtime.rules, runtime.dedupe, self._threads, self._claim_state)

    def close(self) -> None:
        self._threads.close()

    async def apply(self, message: Message, step: RebuildStep) -> bool:
        """Applies one event; true if its handler moved the checkpoint with `ctx.complete`."""
        hide = self._runtime.redactions.redactor.hide(message.type, message.payload)
        if hide is None:
            return await self._apply(message, step)
        with hiding(hide):
            return await self._apply(message, step)

    async def _apply(self, message: Message, step: RebuildStep) -> bool:
        handler, policy, attempt = self._handler, self._handler.retry, 1
        while True:
            invocation = MessageInvocation.of(
                message, handler.name, handler.queue, attempts=attempt, fence=step.held.fence
            )
            context = _RebuildContext(invocation, self._runtime.store, budget(invocation, policy), step, self._lease)
            run = await self._runner.run(handler, context)
            if run.thread is not None:
                # Nothing can stop it, and the next run must not overlap with it.
                await asyncio.wait({run.thread})
                if context.completing and await self._claim_state(context) is ClaimState.SETTLED:
                    return True
            if run.claim_state is ClaimState.SETTLED:
                return True
            change = decide(invocation, run.outcome, policy, random.random())  # noqa: S311
            if isinstance(change, Deliver | Discard):
                return False
            delay = getattr(change, "delay", None)
            if delay is None or isinstance(run.error, _WAITS) or attempt >= policy.attempts:
                raise RebuildStopped(step.held.name, message.id, _problem(run))
            await asyncio.sleep(min(delay, _LONGEST_WAIT).total_seconds())
            attempt += 1

    async def _claim_state(self, context: "_RebuildContext") -> ClaimState:
        cursor, _ = await self._runtime.store.run(reached(context.step.held))
        return ClaimState.SETTLED if cursor == context.step.reached else ClaimState.HELD


def _problem(run: FinishedRun) -> str:
    error = error_of(run.outcome)
    if error is not None:
        return f"{error.type}: {error.message}"
    return f"it ended as {run.outcome.name}" + (f" ({type(run.error).__name__})" if run.error is not None else "")
