"""An intake: fetches the records of one consumer, hands them to its handler and acknowledges them.

A record is acknowledged only after its handler returned, which means that it is durable or done. The broker can
redeliver a record that is still in progress, after a lost connection or an expired deadline; the intake then uses the
new receipt and does not start the record twice. A record that is done but could not be acknowledged is not handled again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast._log import get_logger
from holdfast.brokers.protocol import Lag, Record, Source, Subscription
from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from holdfast.core.failures.report import report

log = get_logger("holdfast.brokers")

_MIN_PAUSE, _MAX_PAUSE = 0.2, 5.0
_NOT_READY_SECONDS = 0.2
_DRAIN_POLL_SECONDS = 0.1
_WAIT, _SHORT_WAIT = 1.0, 0.2
_REPORT_SECONDS = 10.0
_LAST_REPORT_SECONDS = 2.0
_MAX_DONE = 10_000


class RecordHandler(Protocol):
    """Handles records in batches of up to `batch_size`, with up to `max_in_flight` records at the same time."""

    @property
    def batch_size(self) -> int: ...

    @property
    def max_in_flight(self) -> int: ...

    @property
    def is_paused(self) -> bool:
        """Whether the consumer is paused; then no more records are fetched."""
        ...

    async def ready(self) -> bool:
        """Whether more records may be fetched; called before each fetch."""
        ...

    async def handle(self, records: Sequence[Record]) -> None:
        """Returns when these records may be acknowledged. Waits while the store is unavailable."""
        ...


Report = Callable[[Lag | None, str | None], Awaitable[None]]
"""Called from time to time with the lag of the source, and with its current problem."""


@dataclass(slots=True, eq=False)
class _InFlight:
    """A record in progress, with the subscription that delivered it last: only that one can acknowledge it."""

    key: object
    record: Record
    subscription: Subscription


class Intake:
    """Feeds one consumer from its source until stopped. With `until_idle` it checks more often whether it is idle."""

    def __init__(
        self,
        source: Source,
        consumer: str,
        handler: RecordHandler,
        report: Report,
        *,
        grace: float,
        until_idle: bool = False,
    ) -> None:
        self._source, self._consumer, self._handler, self._report = source, consumer, handler, report
        self._grace, self._until_idle, self._wait = grace, until_idle, _SHORT_WAIT if until_idle else _WAIT
        self._in_flight: dict[object, _InFlight] = {}
        self._done: dict[object, None] = {}
        self._current: Subscription | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room_freed = asyncio.Event()
        self._broken: BrokerUnavailable | None = None
        self._empty = False
        self._unavailable_since: float | None = None
        self._lag_unknown_since: float | None = None
        self._report_due = asyncio.Event()
        self._has_unreported = False
        self._has_fetched = self._cut_off = False

    def idle(self, limit: float) -> bool:
        """Whether no record is in progress and none is expected.

        A broker that has been unavailable, or has not reported its lag, for longer than `limit` seconds counts as idle.
        """
        if self._in_flight:
            return False
        long_ago = time.monotonic() - limit
        unavailable = self._unavailable_since is not None and self._unavailable_since < long_ago
        unknown = self._lag_unknown_since is not None and self._lag_unknown_since < long_ago
        return self._empty or self._handler.is_paused or unavailable or unknown

    def cut_off(self) -> None:
        """Ends the grace period after a stop: records in progress are cancelled and released."""
        self._cut_off = True

    async def run(self, stop: asyncio.Event) -> None:
        """Handles records until `stop`. Reconnects to an unavailable broker without a limit."""
        pause = _MIN_PAUSE / 2
        try:
            while not stop.is_set():
                try:
                    async with self._source.open(self._consumer) as subscription:
                        await self._serve(subscription, stop)
                except ConfigurationError:
                    raise
                except asyncio.CancelledError as cancelled:
                    if _is_cancelled():
                        raise
                    # The driver raised it: this task was not cancelled.
                    await self._on_outage(BrokerUnavailable(self._source.name, repr(cancelled)))
                except BrokerUnavailable as error:
                    await self._on_outage(error)
                except Exception as error:  # noqa: BLE001
                    # An unexpected error of a driver may be temporary, like an outage.
                    log.error("intake failed", **self._fields | _error_fields(error))
                    await self._on_outage(BrokerUnavailable(self._source.name, repr(error)[:200]))
                if not stop.is_set():
                    pause = _MIN_PAUSE if self._has_fetched else min(pause * 2, _MAX_PAUSE)
                    self._has_fetched = False
                    await _wait_for(stop, pause * random.uniform(0.5, 1.0))  # noqa: S311
        finally:
            await self._end(self._tasks)

    async def _serve(self, subscription: Subscription, stop: asyncio.Event) -> None:
        """Fetches on one connection until it breaks or `stop` is set."""
        self._broken, self._current = None, subscription
        background = [
            asyncio.create_task(self._extend(subscription), name="holdfast-extend"),
            asyncio.create_task(self._report_lags(subscription), name="holdfast-lag"),
        ]
        try:
            while not stop.is_set():
                await self._fetch(subscription)
                if self._broken is not None:
                    raise self._broken
            await self._drain()
            # The last report counts records that are done by now.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_SECONDS):
                    await self._report_lag(subscription)
        finally:
            self._current = None
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _fetch(self, subscription: Subscription) -> None:
        room = self._handler.max_in_flight - len(self._in_flight)
        if room <= 0:
            self._room_freed.clear()
            await _wait_for(self._room_freed, self._wait)
            return
        if not await self._handler.ready():
            await asyncio.sleep(_NOT_READY_SECONDS)
            return
        records = await subscription.fetch(room, self._wait)
        self._has_fetched = True
        if self._unavailable_since is not None:
            log.info("broker reconnected", **self._fields)
            self._unavailable_since = None
        if records:
            self._empty, self._lag_unknown_since, self._has_unreported = False, None, True
            self._start(subscription, records)
        elif not self._in_flight:
            if self._has_unreported:
                self._report_due.set()
            if self._until_idle and not self._empty:
                await self._check_empty(subscription)

    async def _check_empty(self, subscription: Subscription) -> None:
        lag = await self._lag(subscription)
        if lag is None:
            self._lag_unknown_since = self._lag_unknown_since or time.monotonic()
        else:
            self._empty, self._lag_unknown_since = not lag.waiting, None

    async def _lag(self, subscription: Subscription) -> Lag | None:
        """The lag; None while the broker does not report it, which never ends a subscription.

        For example, a member that joins a group may get no answer until it has joined.
        """
        try:
            return await subscription.lag()
        except Exception as error:  # noqa: BLE001
            log.debug("source lag unavailable", **self._fields, error=repr(error))
            return None

    def _start(self, subscription: Subscription, records: Sequence[Record]) -> None:
        fresh: list[_InFlight] = []
        done: list[_InFlight] = []
        for record in records:
            key = object() if record.id is None else (record.stream, record.id)
            if (entry := self._in_flight.get(key)) is not None:
                entry.record, entry.subscription = record, subscription
                continue
            entry = _InFlight(key, record, subscription)
            if key in self._done:
                done.append(entry)
            else:
                self._in_flight[key] = entry
                fresh.append(entry)
        size = self._handler.batch_size
        for at in range(0, len(fresh), size):
            self._begin(self._handle(fresh[at : at + size]))
        if done:
            self._begin(self._acknowledge(done))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="holdfast-handle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, batch: list[_InFlight]) -> None:
        """Handles a batch and acknowledges it; releases it if that failed."""
        try:
            try:
                await self._handler.handle([entry.record for entry in batch])
            except Exception as error:  # noqa: BLE001
                log.error("intake batch failed", **self._fields | _error_fields(error))
                # Without a pause the broker would redeliver them in a tight loop.
                await asyncio.sleep(_MAX_PAUSE * random.uniform(0.2, 0.4))  # noqa: S311
                await self._settle(batch, lambda subscription: subscription.release)
            else:
                await self._acknowledge(batch)
        finally:
            for entry in batch:
                self._in_flight.pop(entry.key, None)
            self._room_freed.set()

    async def _acknowledge(self, batch: list[_InFlight]) -> None:
        left = batch
        while left:
            settled = [entry.record for entry in left]
            acknowledged = await self._settle(left, lambda subscription: subscription.ack)
            for entry in left:
                self._done.pop(entry.key, None)
                if entry not in acknowledged and entry.record.id is not None:
                    self._done[entry.key] = None
            # Redelivered in the meantime: the new receipt is not acknowledged yet.
            left = [entry for entry, record in zip(left, settled, strict=True) if entry.record is not record]
        while len(self._done) > _MAX_DONE:
            del self._done[next(iter(self._done))]

    async def _settle(
        self,
        batch: Iterable[_InFlight],
        how: Callable[[Subscription], Callable[[Sequence[Record]], Awaitable[None]]],
    ) -> set[_InFlight]:
        """Settles at the broker; returns the settled ones. Only the subscription that delivered a record can settle it."""
        current = [entry for entry in batch if entry.subscription is self._current]
        if current:
            subscription = current[0].subscription
            try:
                await how(subscription)([entry.record for entry in current])
            except Exception as error:  # noqa: BLE001
                # The broker redelivers them, which is safe.
                self._break(subscription, error)
                return set()
        return set(current)

    def _break(self, subscription: Subscription, error: Exception) -> None:
        """Marks this connection as broken; the fetch loop opens a new one."""
        if subscription is self._current:
            if not isinstance(error, BrokerUnavailable):
                error = BrokerUnavailable(self._source.name, repr(error)[:200])
            self._broken = error

    async def _extend(self, subscription: Subscription) -> None:
        """Extends the deadlines of the records in progress, so that the broker does not redeliver them."""
        while True:
            await asyncio.sleep(self._source.ack_timeout / 3)
            records = [entry.record for entry in self._in_flight.values() if entry.subscription is subscription]
            if records:
                try:
                    await subscription.extend(records)
                except Exception as error:  # noqa: BLE001
                    self._break(subscription, error)
                    return

    async def _report_lags(self, subscription: Subscription) -> None:
        """Reports regularly, and as soon as everything that was fetched is done."""
        while True:
            await self._report_lag(subscription)
            await _wait_for(self._report_due, _REPORT_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
            self._report_due.clear()

    async def _report_lag(self, subscription: Subscription) -> None:
        self._has_unreported = False
        lag = await self._lag(subscription)
        try:
            await self._report(lag, None)
        except Exception as error:  # noqa: BLE001
            log.debug("source lag report failed", **self._fields, error=repr(error))

    async def _drain(self) -> None:
        """Waits for the records in progress; cancels and releases them after the grace period."""
        ends = time.monotonic() + self._grace
        while self._tasks and not self._cut_off and (left := ends - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=min(left, _DRAIN_POLL_SECONDS))
        released = list(self._in_flight.values())
        await self._end(self._tasks)
        if released:
            log.warning("records released", **self._fields, records=len(released))
            await self._settle(released, lambda subscription: subscription.release)

    async def _end(self, tasks: Iterable["asyncio.Task[None]"]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _on_outage(self, error: BrokerUnavailable) -> None:
        """Logs and reports an outage once."""
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            self._empty = False
            log.warning("broker unavailable", **self._fields, error=str(error))
            try:
                await self._report(None, str(error))
            except Exception as failed:  # noqa: BLE001
                log.debug("broker outage report failed", **self._fields, error=repr(failed))

    @property
    def _fields(self) -> dict[str, object]:
        return {"consumer": self._consumer, "source": self._source.name}


def _error_fields(error: BaseException) -> dict[str, object]:
    details = report(error)
    return {"error": details.message, "error_type": details.type, "stack_trace": details.trace}


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, for at most `seconds`."""
    # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
