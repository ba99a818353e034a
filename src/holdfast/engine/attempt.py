"""One attempt: running a claimed delivery, finding out how it ended, and handing its settlement over."""

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import orjson
import structlog

from holdfast.core.change import Block, Deliver
from holdfast.core.classify import Verdict, VerdictKind
from holdfast.core.decide import budget
from holdfast.core.delivery import Claim
from holdfast.core.errors import ConfigurationError, HoldfastError, StoreUnavailable
from holdfast.core.outcome import Failed, Outcome, Released, Succeeded
from holdfast.core.redact import hidden, hide_from_here, scrub
from holdfast.core.report import report
from holdfast.core.retry import RetryPolicy
from holdfast.core.trace_context import TRACEPARENT
from holdfast.engine.context import Context
from holdfast.engine.execute import Ended, execute
from holdfast.engine.fields import fields, raised
from holdfast.engine.handler import Handler
from holdfast.engine.outcomes import Outcomes
from holdfast.engine.settler import Settler
from holdfast.engine.surroundings import Probe, Surroundings
from holdfast.engine.threads import Threads
from holdfast.engine.tracing import traced
from holdfast.stores.claim import Claimed
from holdfast.stores.observe import first_trace
from holdfast.stores.operate import block_consumer
from holdfast.stores.settle import Hold, ownership, unlocked

log = structlog.get_logger("holdfast.worker")

_PROBE_SECONDS = 10.0
_SAME_TIME = 1.0
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 1.0


class RolledBack(HoldfastError):
    """A handler called `ctx.complete` and returned, but its transaction did not commit."""


class Attempts:
    """Runs deliveries. Each attempt ends in one settlement, or in none where the store knows the end already.

    `over` is set when the worker's lease is lost. `hold_back` makes the worker start nothing more of a consumer until
    the function that it returns is called.
    """

    def __init__(
        self,
        around: Surroundings,
        worker: str,
        settler: Settler,
        outcomes: Outcomes,
        over: asyncio.Event,
        hold_back: Callable[[str], Callable[[], None]],
    ) -> None:
        self._around, self._store, self._worker = around, around.store, worker
        self._settler, self._outcomes, self._over, self._hold_back = settler, outcomes, over, hold_back
        self._threads = Threads("holdfast-handler")
        self._probing: dict[str, asyncio.Task[bool]] = {}
        self._blocking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._blocked_until: dict[str, float] = {}

    async def run(self, claimed: Claimed, task: "asyncio.Task[None]") -> None:
        """Runs one delivery to its end in this task. Cancelled, it gives the delivery back."""
        if (redactor := self._around.redactor()).declared:
            hide_from_here(redactor.hide(claimed.type, claimed.payload))
        try:
            await self._run(claimed, task)
        except Exception as error:  # noqa: BLE001
            # Ours, not the handler's; but a delivery that nobody settles would stay in flight.
            log.error("an attempt failed outside its handler", **fields(claimed) | raised(error))
            self.settle(claimed, Failed(report(error, hidden()), Verdict.retry()))

    def settle(self, claimed: Claimed, outcome: Outcome) -> None:
        """Settles a delivery without running it."""
        _, ack = self._outcomes.settle(claimed, outcome, self._policy(claimed))
        self._settler.add(ack)

    def close(self) -> None:
        """Ends the threads that are free."""
        self._threads.close()

    async def _run(self, claimed: Claimed, task: "asyncio.Task[None]") -> None:
        handler = self._around.handlers[claimed.consumer]
        policy = handler.retry if claimed.retry is None else self._policy(claimed)
        context = Context(
            claimed,
            self._worker,
            self._store,
            self._around.publisher,
            budget(claimed, policy),
            keep_run=handler.keep_runs,
            by_key=handler.by_key,
        )
        started = time.monotonic()
        trace = None
        if self._around.tracing.on:
            run, first = partial(self._execute, handler, claimed, context, task), first_trace(claimed.id)
            ended, trace = await traced(self._around.tracing, claimed, run, partial(self._store.run, first))
        else:
            ended = await self._execute(handler, claimed, context, task)
        elapsed = time.monotonic() - started
        outcome = await self._found(claimed, ended, elapsed) if context.completing else ended.outcome
        if outcome is not None and context.already_handled:
            log.info("already handled: its effect was applied before", **fields(claimed))
            outcome = Succeeded()
        if outcome is not None:
            detail = context.detail if trace is None else {**(context.detail or {}), TRACEPARENT: trace}
            await self._settle(claimed, handler, policy, outcome, elapsed, detail)
        if ended.thread is not None:
            # Nothing can stop it, so its slot is not free: what runs at once stays bounded.
            await asyncio.wait({ended.thread})

    async def _execute(self, handler: Handler, claimed: Claimed, context: Context, task: "asyncio.Task[None]") -> Ended:
        try:
            ended = await execute(handler, claimed, context, self._around.rules, self._threads, self._around.window)
        except asyncio.CancelledError as cancelled:
            # Unless the worker did it, the handler let a cancellation of its own escape.
            ended = Ended(Failed(report(cancelled, hidden()), Verdict.retry()), cancelled)
        if task.cancelling():
            while task.cancelling():
                task.uncancel()
            # Whatever a handler makes of being cut off, it is no failure of its own.
            if isinstance(ended.outcome, Failed):
                return replace(ended, outcome=Released(started=True))
        return ended

    async def _settle(
        self,
        claimed: Claimed,
        handler: Handler,
        policy: RetryPolicy,
        outcome: Outcome,
        elapsed: float,
        detail: Mapping[str, object] | None,
    ) -> None:
        if isinstance(outcome, Failed) and outcome.verdict.kind is VerdictKind.BLOCK:
            outcome = replace(outcome, held=await self._is_well(outcome.verdict.resource or ""))
        noted = None if detail is None else orjson.dumps(scrub(dict(detail), hidden())).decode()
        change, ack = self._outcomes.settle(claimed, outcome, policy, elapsed, keep_run=handler.keep_runs, detail=noted)
        if isinstance(change, Block) and not change.held:
            # First the pause, then the release: the other way round somebody would claim it in between.
            await self._block(claimed.consumer, change)
        self._settler.add(ack)

    async def _found(self, claimed: Claimed, ended: Ended, elapsed: float) -> Outcome | None:
        """How a delivery stands that its handler completed by itself; none when there is nothing left to settle."""
        match await self._hold(claimed):
            case Hold.SETTLED:
                self._around.meter.settled(claimed, Deliver.name, elapsed)
                if ended.error is not None:
                    log.warning("the handler raised after it had completed", **fields(claimed) | raised(ended.error))
                return None
            case Hold.LOST:
                self._around.meter.lost(claimed)
                known = fields(claimed) | {"worker": self._worker}
                log.warning("lease lost: the handler's transaction was refused", **known)
                return None
            case Hold.MINE if isinstance(ended.outcome, Succeeded):
                why = RolledBack("the handler called ctx.complete() and returned, but its transaction did not commit")
                return Failed(report(why), Verdict.retry())
            case _:
                return ended.outcome

    async def _hold(self, claimed: Claimed) -> Hold:
        claim, pause = Claim(claimed.id, self._worker, claimed.fence), _FIRST_LOOK
        while not self._over.is_set():
            try:
                hold = (await self._store.run(ownership([claim])))[claimed.id]
                if hold is not Hold.MINE:
                    return hold
                # A handler may leave its transaction open, for instance in a thread that timed out. Until that
                # has ended nobody knows, and a settlement would only queue up behind it, with all the others.
                if claimed.id in await self._store.run(unlocked([claimed.id])):
                    return (await self._store.run(ownership([claim])))[claimed.id]
            except StoreUnavailable as error:
                log.warning("a completed delivery waits for the store", **fields(claimed) | {"error": str(error)})
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
        return Hold.LOST

    async def _is_well(self, resource: str) -> bool:
        """Whether a probe of the resource succeeds. One without a probe cannot be known to be out."""
        probe = self._around.probes.get(resource)
        if probe is None:
            return True
        if resource not in self._probing:
            # One for all that ask at the same time.
            task = self._probing[resource] = asyncio.create_task(probed(resource, probe, self._threads))
            task.add_done_callback(lambda _: self._probing.pop(resource, None))
        return await asyncio.shield(self._probing[resource])

    async def _block(self, consumer: str, change: Block) -> None:
        """Persists the pause for every worker, once for all that fail at the same time."""
        resume = self._hold_back(consumer)
        try:
            async with self._blocking[consumer]:
                if time.monotonic() >= self._blocked_until.get(consumer, 0.0):
                    await self._store.run(block_consumer(consumer, change.resource, change.delay, self._worker))
                    self._blocked_until[consumer] = time.monotonic() + _SAME_TIME
        except HoldfastError as error:
            log.warning("a pause was not stored; each delivery waits alone", consumer=consumer, error=str(error))
        finally:
            resume()

    def _policy(self, claimed: Claimed) -> RetryPolicy:
        own = None
        try:
            own = claimed.own_policy
        except ConfigurationError as error:
            # Written by another release.
            log.warning("a message's retry policy cannot be read", **fields(claimed) | {"error": str(error)})
        return own or self._around.handlers[claimed.consumer].retry


async def probed(resource: str, probe: Probe, threads: Threads) -> bool:
    """Whether the probe of a resource succeeds in time."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            answer = probe() if inspect.iscoroutinefunction(probe) else await threads.run(probe)
            return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001
        log.warning("a resource is out: its probe failed", resource=resource, **raised(error))
        return False
