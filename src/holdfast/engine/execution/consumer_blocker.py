"""Pauses a consumer whose resource is unavailable, and tries one delivery at a time until the resource is back.

    running ── Outage, or a class in block_on ──> blocked ── pause over ──> trial ── any other outcome ──> running
                                                     ^                        │
                                                     └──── the same failure ──┘

A resource with a probe (`Holdfast(probes=…)`) blocks its consumer only while the probe fails; a run that fails because of
the resource while the probe succeeds counts as a hold. Without a probe, such a failure counts as a hold only if the
consumer was not blocked: it has made progress since, so the delivery may be the cause. `core/decide.py` limits the holds.
"""

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Protocol, TypeVar
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.change import Block, Change, Release
from holdfast.core.errors import HoldfastError
from holdfast.core.failures.verdict import VerdictKind
from holdfast.core.outcome import Failed, Outcome
from holdfast.engine.execution.threads import Threads
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.deps import Probe
from holdfast.stores.admin.actions import Blocked, block_consumer, unblock_consumer
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.operation import Operation

log = get_logger("holdfast.worker")

T = TypeVar("T")

_PAUSE = timedelta(seconds=5)
_PROBE_SECONDS = 10.0
_SAME_TIME = 1.0
_NOT_STORED = Blocked(began=False, pause=timedelta(0))


class _Runs(Protocol):
    def run(self, operation: Operation[T]) -> Awaitable[T]: ...


class ConsumerBlocker:
    """Blocks and unblocks consumers for all workers. `hold_back` stops new runs of a consumer in this worker until the
    function that it returns is called."""

    def __init__(
        self,
        store: _Runs,
        worker: str,
        probes: Mapping[str, Probe],
        threads: Threads,
        hold_back: Callable[[str], Callable[[], None]] = lambda _: lambda: None,
    ) -> None:
        self._store, self._worker, self._probes, self._threads = store, worker, probes, threads
        self._hold_back = hold_back
        self._probing: dict[str, asyncio.Task[bool]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._written: dict[str, tuple[float, Blocked]] = {}
        self._trials: set[UUID] = set()

    async def found(self, consumer: str, outcome: Outcome) -> Outcome:
        """Blocks the consumer if the run failed because a resource is unavailable; the outcome says whether the hold counts."""
        if not isinstance(outcome, Failed) or outcome.verdict.kind is not VerdictKind.BLOCK:
            return outcome
        resource = outcome.verdict.resource or ""
        probe = self._probes.get(resource)
        if probe is not None and await self._probed(resource, probe):
            return replace(outcome, held=True)
        # The pause is stored before the delivery is released: otherwise another worker could claim it in between.
        began, pause = await self._block(consumer, resource)
        # Work that becomes due during the pause is tried before this delivery, which may be the only one that fails.
        return replace(outcome, held=probe is None and began, verdict=replace(outcome.verdict, after=pause))

    def started(self, claims: Iterable[Claimed]) -> None:
        """Records which claims are trial runs of blocked consumers."""
        self._trials.update(claimed.id for claimed in claims)

    @property
    def has_trials(self) -> bool:
        """Whether a trial runs in this worker."""
        return bool(self._trials)

    async def ended(self, claimed: Claimed, change: Change | None) -> None:
        """Unblocks the consumer if a trial did not fail because of the resource. A cancelled trial proves nothing."""
        if claimed.id not in self._trials:
            return
        self._trials.discard(claimed.id)
        if isinstance(change, Block | Release):
            return
        resume = self._hold_back(claimed.consumer)
        self._written.pop(claimed.consumer, None)
        try:
            if await self._store.run(unblock_consumer(claimed.consumer, self._worker, "a trial did not fail by it")):
                log.info("consumer unblocked", consumer=claimed.consumer, worker=self._worker)
        except HoldfastError as error:
            log.warning("consumer unblock failed", consumer=claimed.consumer, error=str(error))
        finally:
            resume()

    async def _block(self, consumer: str, resource: str) -> Blocked:
        """Stores the pause, once for all runs that fail at the same time."""
        resume = self._hold_back(consumer)
        try:
            async with self._locks[consumer]:
                written_at, written = self._written.get(consumer, (float("-inf"), _NOT_STORED))
                if time.monotonic() < written_at + _SAME_TIME:
                    return written._replace(began=False)
                blocked = await self._store.run(block_consumer(consumer, resource, _PAUSE, self._worker))
                self._written[consumer] = time.monotonic(), blocked
                return blocked
        except HoldfastError as error:
            log.warning("consumer block failed", consumer=consumer, error=str(error))
            return _NOT_STORED
        finally:
            resume()

    async def _probed(self, resource: str, probe: Probe) -> bool:
        """Whether the probe succeeds; concurrent runs share one call."""
        if resource not in self._probing:
            task = self._probing[resource] = asyncio.create_task(_probed(resource, probe, self._threads))
            task.add_done_callback(lambda _: self._probing.pop(resource, None))
        return await asyncio.shield(self._probing[resource])


async def _probed(resource: str, probe: Probe, threads: Threads) -> bool:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            answer = probe() if inspect.iscoroutinefunction(probe) else await threads.run(probe)
            return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001
        log.warning("resource unavailable", resource=resource, **error_fields(error))
        return False
