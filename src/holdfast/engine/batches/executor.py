"""Runs a claimed batch and queues the settlement of each item."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.core.change import Change, Deliver
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events.event import NewerVersion
from holdfast.core.failures.report import report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.outcome import Failed, Outcome, Released, Snoozed, Succeeded, outcome_of
from holdfast.core.redaction.redact import hidden, hide_from_here
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.trace_context import TRACEPARENT
from holdfast.engine.batches.batch import ClaimedBatch
from holdfast.engine.batches.context import BatchContext
from holdfast.engine.batches.runner import BatchRunner, FinishedBatch
from holdfast.engine.execution.confirmation import Confirmation
from holdfast.engine.execution.consumer_blocker import ConsumerBlocker
from holdfast.engine.execution.payloads import LargePayloads, LoadedBatch
from holdfast.engine.execution.runner import NEWER_VERSION_DELAY, RolledBack
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.settlement.builder import SettlementBuilder
from holdfast.engine.settlement.settler import Settler
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.deps import WorkerDeps
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.dedupe import is_rerun, window_key
from holdfast.stores.deliveries.settle import ClaimState

log = get_logger("holdfast.worker")

_SLICE = 0.005


@dataclass(slots=True)
class _Attempt:
    """A batch in progress: its handler, and the items that have no outcome yet, by id."""

    batch: ClaimedBatch
    handler: Handler
    open: dict[UUID, Claimed]
    is_started: bool = False


class BatchExecutor:
    """Runs batches. Each item ends in one settlement, or in none if the handler committed it with `ctx.complete`."""

    def __init__(
        self,
        deps: WorkerDeps,
        worker: str,
        settler: Settler,
        settlements: SettlementBuilder,
        blocker: ConsumerBlocker,
        payloads: LargePayloads,
        runner: BatchRunner,
        confirmation: Confirmation,
        policy_of: Callable[[Claimed], RetryPolicy],
        lease: timedelta,
    ) -> None:
        self._deps, self._worker, self._settler, self._settlements = deps, worker, settler, settlements
        self._blocker, self._payloads, self._runner, self._confirmation = blocker, payloads, runner, confirmation
        self._policy_of, self._lease = policy_of, lease

    async def run(self, batch: ClaimedBatch, task: "asyncio.Task[None]") -> None:
        """Runs a batch in this task. A cancellation releases its items."""
        handler = self._deps.handlers[batch.consumer]
        attempt = _Attempt(batch, handler, {item.id: item for item in batch.items})
        try:
            async with self._payloads.batch(batch.items) as loaded:
                await self._run(attempt, loaded, task)
        except asyncio.CancelledError:
            if attempt.is_started:
                raise
            while task.cancelling():
                task.uncancel()
            self._settle_open(attempt, Released(started=False))
        except Exception as error:  # noqa: BLE001
            # An error of Holdfast, not of the handler. Without a settlement the items would stay in flight.
            log.error("attempt failed outside handler", **batch.fields | error_fields(error))
            self._settle_open(attempt, Failed(report(error, hidden()), Verdict.retry()))

    async def _run(self, attempt: _Attempt, loaded: LoadedBatch, task: "asyncio.Task[None]") -> None:
        if (redactor := self._deps.redactor()).declared:
            hide_from_here(redactor.hide_all((item.type, item.payload) for item in loaded.loaded))
        for item in loaded.left:
            self._settle(attempt, attempt.open[item.id], Released(started=False))
        for id, error in loaded.failed.items():
            item = attempt.open[id]
            log.error("payload load failed", **self._settlements.log_fields(item) | error_fields(error))
            self._settle(attempt, item, Failed(report(error, hidden()), Verdict.retry()))
        claims, events = await self._read(attempt, loaded.loaded)
        if not claims:
            return
        handler = attempt.handler
        context = BatchContext(
            claims,
            handler.retry,
            self._worker,
            self._deps.store,
            self._deps.publisher,
            keep_run=handler.keep_runs,
            idle_timeout=self._lease,
        )
        attempt.is_started = True
        run = await self._runner.run(handler, context, claims, events, task)
        states = await self._confirmation.states(context.claims, attempt.batch.fields) if context.completing else {}
        await self._end(attempt, claims, run, states)
        if run.thread is not None:
            # Nothing can stop it, so its slot is not free: the number of concurrent runs stays bounded.
            await asyncio.wait({run.thread})

    async def _read(self, attempt: _Attempt, items: Sequence[Claimed]) -> tuple[list[Claimed], list[object]]:
        """The items to run, with their payloads as the handler takes them.

        The other items are settled here, one by one.
        """
        handler, claims, events = attempt.handler, list[Claimed](), list[object]()
        turn = time.monotonic()
        for item in items:
            claimed = attempt.open[item.id]
            try:
                if handler.dedupe is not None and await self._was_handled(handler, claimed):
                    self._settle(attempt, claimed, Succeeded())
                    continue
                ((event,), _) = handler.arguments(item)
            except NewerVersion:
                self._settle(attempt, claimed, Snoozed(NEWER_VERSION_DELAY))
            except Exception as error:  # noqa: BLE001
                outcome = outcome_of(error, handler.rules, self._deps.rules, hide=hidden())
                self._settle(attempt, claimed, outcome)
            else:
                claims.append(claimed)
                events.append(event)
            if time.monotonic() - turn > _SLICE:
                await asyncio.sleep(0)
                turn = time.monotonic()
        return claims, events

    async def _end(
        self, attempt: _Attempt, claims: list[Claimed], run: FinishedBatch, states: Mapping[UUID, ClaimState]
    ) -> None:
        """Settles each item of a batch that ran. The states are known if the handler called `ctx.complete`."""
        share, delivered = run.elapsed / len(claims), 0
        found: dict[int, Outcome] = {}
        rolled_back = _rolled_back() if states else None
        detail = None if run.traceparent is None else orjson.dumps({TRACEPARENT: run.traceparent}).decode()
        if run.error is not None and ClaimState.SETTLED in states.values():
            log.warning("handler raised after completion", **attempt.batch.fields | error_fields(run.error))
        for claimed, outcome in zip(claims, run.outcomes, strict=True):
            change: Change | None = None
            match states.get(claimed.id):
                case ClaimState.SETTLED:
                    delivered += 1
                    del attempt.open[claimed.id]
                    self._deps.meter.settled(claimed, Deliver.name, share)
                case ClaimState.LOST:
                    del attempt.open[claimed.id]
                    self._deps.meter.lost(claimed)
                    log.warning("lease lost", **self._settlements.log_fields(claimed))
                case state:
                    if state is ClaimState.HELD and isinstance(outcome, Succeeded) and rolled_back is not None:
                        outcome = rolled_back
                    if id(outcome) not in found:
                        # One exception of several items is about one resource.
                        found[id(outcome)] = await self._blocker.found(claimed.consumer, outcome)
                    outcome = found[id(outcome)]
                    if isinstance(outcome, Succeeded):
                        await self._record(attempt.handler, claimed)
                    change = self._settle(attempt, claimed, outcome, run.elapsed, share, detail)
                    delivered += isinstance(change, Deliver)
            await self._blocker.ended(claimed, change)
        known = attempt.batch.fields | {"delivered": delivered, "latency_ms": round(run.elapsed * 1000, 1)}
        if delivered == len(claims):
            log.debug("batch completed", **known)
        else:
            log.info("batch completed", **known)

    def _settle(
        self,
        attempt: _Attempt,
        claimed: Claimed,
        outcome: Outcome,
        elapsed: float | None = None,
        share: float | None = None,
        detail: str | None = None,
    ) -> Change:
        policy = attempt.handler.retry if claimed.retry is None else self._policy_of(claimed)
        keep_run = attempt.handler.keep_runs and elapsed is not None
        change, ack = self._settlements.build(
            claimed, outcome, policy, elapsed, keep_run=keep_run, detail=detail, share=share
        )
        self._settler.add(ack)
        del attempt.open[claimed.id]
        return change

    def _settle_open(self, attempt: _Attempt, outcome: Outcome) -> None:
        for claimed in list(attempt.open.values()):
            self._settle(attempt, claimed, outcome)

    async def _was_handled(self, handler: Handler, claimed: Claimed) -> bool:
        """Whether the handler's dedupe window has the key of this item, and no operator requested another run."""
        key = window_key(claimed.source, claimed.key, claimed.message_id)
        if not await self._deps.window.seen(handler.name, key):
            return False
        if await self._deps.store.run(is_rerun(claimed.consumer, claimed.id)):
            return False
        log.info("duplicate skipped", consumer=handler.name, idempotency_key=key, event_id=str(claimed.message_id))
        return True

    async def _record(self, handler: Handler, claimed: Claimed) -> None:
        if handler.dedupe is None:
            return
        key = window_key(claimed.source, claimed.key, claimed.message_id)
        try:
            await self._deps.window.record(handler.name, key, handler.dedupe)
        except StoreUnavailable as error:
            # The effect is done. Failing now would repeat it, which the window exists to prevent.
            log.warning("dedupe record failed", consumer=handler.name, error=str(error))


def _rolled_back() -> Outcome:
    why = RolledBack("the handler called ctx.complete() and returned, but its transaction did not commit")
    return Failed(report(why, hidden()), Verdict.retry())
