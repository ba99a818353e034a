"""`hf.projectors`: rebuilding projectors with the app's own handlers."""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

from holdfast.core.change import Deliver, Discard
from holdfast.core.decide import budget, decide
from holdfast.core.errors import NotFound, RebuildStopped, Refused, TerminalError
from holdfast.core.events.event import NewerVersion
from holdfast.core.message import Message
from holdfast.core.outcome import error_of
from holdfast.core.redaction.redact import hiding
from holdfast.engine.context import IDLE_TIMEOUT, Context
from holdfast.engine.handler import Handler, Kind
from holdfast.engine.invocation import MessageInvocation
from holdfast.engine.options import instance_id
from holdfast.engine.runner import FinishedRun, Runner
from holdfast.engine.threads import Threads
from holdfast.projections.rebuild import LEASE, Rebuild, RebuildProgress, Rebuilt, Subject
from holdfast.stores.deliveries.settle import ClaimState
from holdfast.stores.event_log.log import EventFilter
from holdfast.stores.event_log.projection import RebuildStep, checkpoint, reached
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

_LONGEST_WAIT = timedelta(minutes=1)

Watch = Callable[[RebuildProgress], None]


class Projectors:
    """Projectors of an app. How they stand is in `hf.ops.projectors()`; rebuilding them needs the app itself."""

    def __init__(self, app: "Holdfast") -> None:
        self._app = app

    @property
    def sync(self) -> "SyncProjectors":
        return SyncProjectors(self)

    async def rebuild(
        self,
        *names: str,
        actor: str,
        reason: str | None = None,
        resume: bool = False,
        skip: Iterable[UUID] = (),
        progress: Watch | None = None,
        lease: timedelta = LEASE,
    ) -> list[Rebuilt]:
        """Builds the results of these projectors anew from the event store, one after another.

        A projector with `swap` is built beside its live result, which is read and updated until the new one takes its
        place in one transaction. Without `swap` it is held meanwhile. Killed at any moment, it can be run again:
        from the beginning, or with `resume` from where it was, if the handler is the same. `skip` names events to
        leave out; discarded ones are. `RebuildStopped` names the event that the handler cannot apply. For as long as
        `lease` after it was killed, another is refused.
        """
        handlers = [self.handler(name) for name in names]
        await self._app._prepare(None)
        return [
            await self._rebuild(handler, actor, reason, resume, frozenset(skip), progress, lease)
            for handler in handlers
        ]

    def handler(self, name: str) -> Handler:
        """The projector of this name; `Refused` if it says nothing of how it is made empty."""
        known = {one.name: one for one in self._app.handlers.values() if one.kind is Kind.PROJECTOR}
        if name not in known:
            raise NotFound("projector", name, f"this app has {', '.join(sorted(known)) or 'none'}")
        if known[name].reset is None:
            raise Refused(
                "rebuild", f"projector {name}", "declared without reset=", "give @hf.projector(reset=…), and swap="
            )
        return known[name]

    async def _rebuild(
        self,
        handler: Handler,
        actor: str,
        reason: str | None,
        resume: bool,
        skip: frozenset[UUID],
        progress: Watch | None,
        lease: timedelta,
    ) -> Rebuilt:
        assert handler.reset is not None
        owner, applying = instance_id(), _Applying(self._app, handler, lease)
        subject = Subject(
            name=handler.name,
            wanted=EventFilter(handler.patterns),
            apply=applying.apply,
            reset=handler.reset,
            swap=handler.swap,
        )
        try:
            return await Rebuild(
                self._app.store,
                subject,
                owner=owner,
                actor=actor,
                reason=reason,
                skip=skip,
                progress=progress,
                lease=lease,
            ).run(resume=resume)
        finally:
            applying.close()


class SyncProjectors:
    """The blocking twins."""

    def __init__(self, projectors: Projectors) -> None:
        self._projectors = projectors

    def rebuild(
        self,
        *names: str,
        actor: str,
        reason: str | None = None,
        resume: bool = False,
        skip: Iterable[UUID] = (),
        progress: Watch | None = None,
        lease: timedelta = LEASE,
    ) -> list[Rebuilt]:
        """`Projectors.rebuild`, blocking, in an event loop of its own."""
        return asyncio.run(
            self._projectors.rebuild(
                *names, actor=actor, reason=reason, resume=resume, skip=skip, progress=progress, lease=lease
            )
        )


class _Silent:
    """What a context has in place of an app: history must not publish anything a second time."""

    @property
    def sync(self) -> "_Silent":
        return self

    def publish(self, *_: object, **__: object) -> NoReturn:
        raise TerminalError(
            "a projector publishes inside a rebuild, which would repeat what was published when it first ran; do so "
            "only `if not ctx.rebuilding`"
        )


class _RebuildContext(Context):
    """An event of the past as its handler sees it: completing it moves the rebuild on, in the same transaction."""

    __slots__ = ("_lease", "place")

    rebuilding = True

    def __init__(
        self, invocation: MessageInvocation, store: Store, attempts: int, place: RebuildStep, lease: timedelta
    ) -> None:
        super().__init__(invocation, place.held.owner, store, _Silent(), attempts)
        self.place, self._lease = place, lease

    def _completion(self, key: str | None) -> Operation[None]:
        if key is not None:
            raise TerminalError(
                f"projector {self.consumer} completes with key=, which a rebuild cannot tell from the first time; "
                "complete without it"
            )
        return checkpoint(self.place, self._lease, IDLE_TIMEOUT)


class _Applying:
    """Runs a projector's handler for one event after another, by its own retry policy."""

    def __init__(self, app: "Holdfast", handler: Handler, lease: timedelta) -> None:
        self._app, self._lease = app, lease
        # It was all seen before; that must not keep it from being applied.
        self._handler = replace(handler, dedupe=None)
        self._threads = Threads("holdfast-rebuild")
        self._runner = Runner(app.rules, app._bound_to.window, self._threads, self._claim_state)

    def close(self) -> None:
        self._threads.close()

    async def apply(self, message: Message, place: RebuildStep) -> bool:
        """Applies one event; true when its handler moved the rebuild on in its own transaction."""
        hide = self._app._redactions.redactor.hide(message.type, message.payload)
        if hide is None:
            return await self._apply(message, place)
        with hiding(hide):
            return await self._apply(message, place)

    async def _apply(self, message: Message, place: RebuildStep) -> bool:
        handler, policy, attempt = self._handler, self._handler.retry, 1
        while True:
            invocation = MessageInvocation.of(
                message, handler.name, handler.queue, attempts=attempt, fence=place.held.fence
            )
            context = _RebuildContext(invocation, self._app.store, budget(invocation, policy), place, self._lease)
            run = await self._runner.run(handler, context)
            if run.thread is not None:
                # Nothing can stop it, and the next run must not overlap with it.
                await asyncio.wait({run.thread})
            if run.claim_state is ClaimState.SETTLED:
                return True
            change = decide(invocation, run.outcome, policy, random.random())  # noqa: S311
            if isinstance(change, Deliver | Discard):
                return False
            delay = getattr(change, "delay", None)
            if delay is None or isinstance(run.error, NewerVersion) or attempt >= policy.attempts:
                raise RebuildStopped(place.held.name, message.id, _problem(run))
            await asyncio.sleep(min(delay, _LONGEST_WAIT).total_seconds())
            attempt += 1

    async def _claim_state(self, context: "_RebuildContext") -> ClaimState:
        cursor, _ = await self._app.store.run(reached(context.place.held))
        return ClaimState.SETTLED if cursor == context.place.reached else ClaimState.HELD


def _problem(run: FinishedRun) -> str:
    error = error_of(run.outcome)
    if error is not None:
        return f"{error.type}: {error.message}"
    return f"it ended as {run.outcome.name}" + (f" ({type(run.error).__name__})" if run.error is not None else "")


def projector_names(handlers: Iterable[Handler]) -> list[str]:
    """Those of the handlers that are projectors."""
    return [handler.name for handler in handlers if handler.kind is Kind.PROJECTOR]
