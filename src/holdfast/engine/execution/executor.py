"""Runs a claimed delivery and queues its settlement."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from holdfast._log import get_logger
from holdfast.core.change import Deliver, Remove
from holdfast.core.decide import budget
from holdfast.core.errors import ConfigurationError
from holdfast.core.failures.classify import Verdict
from holdfast.core.failures.report import report
from holdfast.core.group import GROUP_MARK
from holdfast.core.outcome import Cancelled, Failed, Outcome, Released, Snoozed
from holdfast.core.redaction.redact import hidden, hide_from_here, scrub
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.trace_context import TRACEPARENT
from holdfast.engine.batches.executor import BatchExecutor
from holdfast.engine.batches.runner import BatchRunner
from holdfast.engine.execution.confirmation import Confirmation
from holdfast.engine.execution.consumer_blocker import ConsumerBlocker
from holdfast.engine.execution.payloads import LargePayloads
from holdfast.engine.execution.runner import NEWER_VERSION_DELAY, FinishedRun, Runner
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.handlers.progress import ProgressWriter
from holdfast.engine.handlers.results import ResultContext
from holdfast.engine.settlement.builder import SettlementBuilder, removal
from holdfast.engine.settlement.group_stages import GroupStages
from holdfast.engine.settlement.settler import Ack, Settler
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.deps import WorkerDeps
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.workflows.deadline import RunningDeadline, StepDeadlinePassed
from holdfast.engine.workflows.loader import StepLoader, has_steps, may_run
from holdfast.engine.workflows.step import Step
from holdfast.engine.workflows.step_ack import completed, for_run
from holdfast.engine.workflows.step_context import MappedStep, StepContext
from holdfast.stores.deliveries.claim import Claimed, Lane, claim_trial
from holdfast.stores.deliveries.settle import ClaimState, Settlement, may_remove_messages
from holdfast.stores.deliveries.trial import flow_trial
from holdfast.stores.queries.query import first_trace

log = get_logger("holdfast.worker")


class DeliveryExecutor:
    """Runs deliveries. Each run ends in one settlement, or in none if the handler committed it with `ctx.complete`.

    `lease_lost` is set when the worker's lease is lost. `hold_back` stops new runs of a consumer until the function that it
    returns is called.
    """

    def __init__(
        self,
        deps: WorkerDeps,
        worker: str,
        settler: Settler,
        settlements: SettlementBuilder,
        lease_lost: asyncio.Event,
        hold_back: Callable[[str], Callable[[], None]],
        lease: timedelta,
    ) -> None:
        self._deps, self._store, self._worker, self._lease = deps, deps.store, worker, lease
        self._settler, self._settlements = settler, settlements
        self._threads = Threads("holdfast-handler")
        self._runner = Runner(
            deps.rules,
            deps.window,
            self._threads,
            self._claim_state,
            deps.tracing,
            lambda id: self._store.run(first_trace(id)),
        )
        self._blocker = ConsumerBlocker(self._store, worker, deps.probes, self._threads, hold_back)
        self._payloads = LargePayloads(self._store)
        self.groups = GroupStages(self._store, worker, deps.max_result)
        self.progress = ProgressWriter(self._store, worker)
        self._removing = frozenset(name for name, one in deps.handlers.items() if one.removes_delivered)
        self.steps = StepLoader(self._store, deps.handlers)
        """Reads the runs of claimed workflow steps."""
        self._has_steps = has_steps(deps.handlers)
        self._confirmation = Confirmation(self._store, lease_lost)
        self.batches = BatchExecutor(
            deps,
            worker,
            settler,
            settlements,
            self._blocker,
            self._payloads,
            BatchRunner(deps.rules, self._threads, deps.tracing),
            self._confirmation,
            self._policy,
            lease,
        )
        """Runs the deliveries of batch handlers."""

    async def start(self, lease: Lease) -> None:
        """Prepares to run under this lease; raises `ConfigurationError` if the role may not remove rows for `keep='0'`."""
        self._settler.lease_held_since = lease.held_since
        if self._removing and not await self._store.run(may_remove_messages()):
            raise ConfigurationError(
                f"handlers with keep='0' remove their messages ({', '.join(sorted(self._removing))}), but this database role may "
                "not delete messages; run `grant delete on holdfast.message to ROLE`, or give keep= a duration"
            )

    def accepted(self, claims: Sequence[Claimed]) -> None:
        """Loads the runs of claimed workflow steps before the steps start."""
        if self._has_steps:
            self.steps.prefetch(claims)

    def run(self, claimed: Claimed, task: "asyncio.Task[None]") -> Coroutine[Any, Any, None]:
        """Runs one delivery in this task. A cancellation releases the delivery."""
        return self._attempt(claimed, claimed, task) if claimed.has_payload else self._load_and_run(claimed, task)

    async def _load_and_run(self, claimed: Claimed, task: "asyncio.Task[None]") -> None:
        try:
            loaded = await self._payloads.load(claimed)
        except asyncio.CancelledError:
            while task.cancelling():
                task.uncancel()
            self.settle(claimed, Released(started=False))
            return
        except Exception as error:  # noqa: BLE001
            log.error("payload load failed", **self._settlements.log_fields(claimed) | error_fields(error))
            self.settle(claimed, Failed(report(error, hidden()), Verdict.retry()))
            return
        try:
            await self._attempt(claimed, loaded, task)
        finally:
            self._payloads.release(loaded)

    async def _attempt(self, claimed: Claimed, loaded: Claimed, task: "asyncio.Task[None]") -> None:
        """Runs a delivery. `loaded` has its payload; `claimed` may not, so that a settlement does not keep it in memory."""
        if (redactor := self._deps.redactor()).declared:
            hide_from_here(redactor.hide(claimed.type, loaded.payload))
        try:
            handler = self._deps.handlers[claimed.consumer]
            policy = handler.retry if claimed.retry is None else self._policy(claimed)
            if GROUP_MARK in claimed.headers:
                entered = await self.groups.enter(loaded, handler)
                if not isinstance(entered, Claimed):
                    self.settle(claimed, entered)
                    return
                loaded = entered
            context: Context
            if handler.step is None:
                context = self._context(loaded, handler, policy)
            else:
                step = await self._step(loaded, handler, policy)
                if step is None:
                    return
                context = step
                if step.deadline is not None:
                    handler = step.deadline.limited(handler)
            run = await self._runner.run(handler, context, task)
            if run.claim_state is None or run.claim_state is ClaimState.HELD:
                await self._settle(claimed, handler, policy, context, run)
            else:
                await self._completed(claimed, context, run, run.claim_state)
            if run.thread is not None:
                # Nothing can stop it, so its slot is not free: the number of concurrent runs stays bounded.
                await asyncio.wait({run.thread})
        except Exception as error:  # noqa: BLE001
            # An error of Holdfast, not of the handler. Without a settlement the delivery would stay in flight.
            log.error("attempt failed outside handler", **self._settlements.log_fields(claimed) | error_fields(error))
            self.settle(claimed, Failed(report(error, hidden()), Verdict.retry()))

    async def trials(self, lanes: Mapping[str, Sequence[Lane]], options: WorkerOptions) -> list[Claimed]:
        """Claims one trial delivery of each blocked consumer, unless another worker is running one."""
        claims: list[Claimed] = []
        for consumer, found in lanes.items():
            longest = max(options.lease, self._deps.handlers[consumer].timeout or options.lease)
            flow = None
            if any(lane.flow is not None for lane in found):
                flow = flow_trial(self._worker, options.lease, suspects=options.suspects)
            trial = claim_trial(found, self._worker, options.lease, longest, suspects=options.suspects, flow=flow)
            claims += await self._store.run(trial)
        self._blocker.started(claims)
        return claims

    def settle(self, claimed: Claimed, outcome: Outcome) -> None:
        """Settles a delivery without running it."""
        change, ack = self._settlements.build(claimed, outcome, self._policy(claimed))
        self._settler.add(self.groups.settlement(claimed, change, ack) if GROUP_MARK in claimed.headers else ack)

    def close(self) -> None:
        """Ends idle threads."""
        self._threads.close()
        self.progress.close()

    def _context(self, loaded: Claimed, handler: Handler, policy: RetryPolicy) -> Context:
        if handler.result is not None:
            return self._result_context(loaded, handler, handler.result, policy)
        return Context(
            loaded,
            self._worker,
            self._store,
            self._deps.publisher,
            budget(loaded, policy),
            keep_run=handler.keep_runs,
            by_key=handler.by_key,
            idle_timeout=self._lease,
            progress=self.progress,
        )

    def _result_context(self, loaded: Claimed, handler: Handler, keep: timedelta, policy: RetryPolicy) -> Context:
        return ResultContext(
            loaded,
            self._worker,
            self._store,
            self._deps.publisher,
            budget(loaded, policy),
            keep_run=handler.keep_runs,
            by_key=handler.by_key,
            idle_timeout=self._lease,
            progress=self.progress,
            keep=keep,
            max_bytes=self._deps.max_result,
        )

    async def _step(self, loaded: Claimed, handler: Handler, policy: RetryPolicy) -> StepContext | None:
        """The context of a step; None if it must not run, and then it is settled."""
        spec = handler.step
        assert spec is not None
        run = await self.steps.load(loaded, spec)
        if run is None or not may_run(run.status, spec):
            claimed = loaded._replace(payload="")
            state = "gone" if run is None else str(run.status)
            log.info("step skipped", **self._settlements.log_fields(claimed) | {"run_status": state})
            self.settle(claimed, Cancelled(f"its run is {state}; see `holdfast workflows show {loaded.message_id}`"))
            return None
        graph = await self.steps.graph(spec, run.version)
        if graph is None:
            claimed = loaded._replace(payload="")
            known = self._settlements.log_fields(claimed) | {
                "version": run.version,
                "known_version": spec.workflow.version,
            }
            log.warning("workflow version unknown", **known)
            # Short at first: a worker that knows the version may run at the same time. Each claim raises the fence.
            delay = timedelta(seconds=2 ** min(loaded.fence - 1, 5))
            self.settle(claimed, Snoozed(min(delay, NEWER_VERSION_DELAY)))
            return None
        deadline = None
        if spec.deadline is not None and (deadline := await self._begin(loaded, spec.name, spec.deadline)) is None:
            return None
        kind = Step if spec.item is None else MappedStep
        return kind(
            loaded,
            self._worker,
            self._store,
            self._deps.publisher,
            budget(loaded, policy),
            idle_timeout=self._lease,
            progress=self.progress,
            spec=spec,
            loaded=run,
            graph=graph,
            deadline=deadline,
        )

    async def _begin(self, loaded: Claimed, step: str, limit: timedelta) -> RunningDeadline | None:
        """The deadline of a step that starts; None if it has passed, and then the step is a dead letter."""
        row = await self.steps.begin_deadline(self._worker, loaded, step, limit)
        claimed = loaded._replace(payload="")
        if row is None:
            self._deps.meter.lost(claimed)
            log.warning("lease lost", **self._settlements.log_fields(claimed))
        elif row.left <= timedelta(0):
            self.settle(claimed, Failed(report(StepDeadlinePassed(step, limit), hidden()), Verdict.dead()))
        else:
            return RunningDeadline(row)
        return None

    async def _settle(
        self, claimed: Claimed, handler: Handler, policy: RetryPolicy, context: Context, run: FinishedRun
    ) -> None:
        """Queues the settlement of a run that its handler did not complete."""
        if context.already_handled:
            log.info("delivery already handled", **self._settlements.log_fields(claimed))
        outcome, noted, detail = run.outcome, None, context.detail
        if isinstance(outcome, Failed):
            outcome = await self._blocker.found(claimed.consumer, outcome)
        if run.traceparent is not None:
            detail = {**(detail or {}), TRACEPARENT: run.traceparent}
        if detail is not None:
            noted = orjson.dumps(scrub(dict(detail), hidden())).decode()
        change, ack = self._settlements.build(
            claimed, outcome, policy, run.elapsed, keep_run=handler.keep_runs, detail=noted
        )
        if context.keeps_result:
            if isinstance(context, StepContext):
                ack = for_run(ack, change, context)
            elif isinstance(context, ResultContext):
                ack = context.settlement(ack, change, self._deps.announce_result)
        if self._removing and claimed.consumer in self._removing:
            ack = removal(claimed, ack)
        if GROUP_MARK in claimed.headers:
            ack = self.groups.settlement(claimed, change, ack)
        if context.reported is not None:
            ack = self.progress.settlement(context.reported, change, ack)
        self._settler.add(ack)
        if self._blocker.has_trials:
            await self._blocker.ended(claimed, change)

    async def _completed(self, claimed: Claimed, context: Context, run: FinishedRun, state: ClaimState) -> None:
        """Ends a run whose handler called `ctx.complete`: it committed the settlement, or its claim was lost."""
        if state is ClaimState.SETTLED:
            self._deps.meter.settled(claimed, Deliver.name, run.elapsed)
            if run.error is not None:
                log.warning(
                    "handler raised after completion", **self._settlements.log_fields(claimed) | error_fields(run.error)
                )
            if isinstance(context, StepContext):
                self._settler.add(completed(context))
            elif context.keeps_result:
                self._deps.announce_result()
            if GROUP_MARK in claimed.headers:
                self.groups.ended(claimed)
            elif claimed.consumer in self._removing:
                done = Settlement(claimed.id, claimed.fence, Remove(completed=True), Deliver.name)
                self._settler.add(Ack(done))
            if context.reported is not None:
                self.progress.delivered(context.reported)
        else:
            self._deps.meter.lost(claimed)
            log.warning("lease lost", **self._settlements.log_fields(claimed))
        await self._blocker.ended(claimed, None)

    async def _claim_state(self, context: Context) -> ClaimState:
        """Waits until it is known whether the handler's transaction committed."""
        claim = context.claim
        return (await self._confirmation.states([claim], context.invocation))[claim.delivery_id]

    def _policy(self, claimed: Claimed) -> RetryPolicy:
        own = None
        try:
            own = claimed.own_policy
        except ConfigurationError as error:
            # Written by another version.
            log.warning("retry policy invalid", **self._settlements.log_fields(claimed) | {"error": str(error)})
        return own or self._deps.handlers[claimed.consumer].retry
