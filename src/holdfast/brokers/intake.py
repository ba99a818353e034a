"""An intake: one consumer's records, from the fetch to the acknowledgement, through outages of broker and store.

A record is acknowledged after whoever takes it says that it is durable or done, never before. What the broker hands
over again meanwhile, because a connection was lost or its patience ended, joins the record that is under way here; and
what is done, but could not be acknowledged, is not done again.
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

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_NOT_READY_SECONDS = 0.2
_LOOK_SECONDS = 0.1
_WAIT, _SHORT_WAIT = 1.0, 0.2
_REPORT_SECONDS = 10.0
_LAST_REPORT_SECONDS = 2.0
_MOST_DONE = 10_000


class Taker(Protocol):
    """What becomes of records: `batch` of them at once, `bound` under way at the same time."""

    @property
    def batch(self) -> int: ...

    @property
    def bound(self) -> int: ...

    @property
    def closed(self) -> bool:
        """Whether nothing will be taken however long one waits: the consumer is paused."""
        ...

    async def ready(self) -> bool:
        """Whether more may be fetched; asked before each fetch."""
        ...

    async def take(self, records: Sequence[Record]) -> None:
        """Returns once these may be acknowledged. Outages of the store are waited out inside."""
        ...


Report = Callable[[Lag | None, str | None], Awaitable[None]]
"""Told now and then how far the source is behind, and what is in the way."""


@dataclass(slots=True, eq=False)
class _Held:
    """A record under way, with the subscription that handed it over last: only that one can acknowledge it."""

    key: object
    record: Record
    subscription: Subscription


class Intake:
    """Feeds one consumer from its source until told to stop. `hasty` asks often, for one that is to end when idle."""

    def __init__(
        self, source: Source, consumer: str, taker: Taker, report: Report, *, grace: float, hasty: bool = False
    ) -> None:
        self._source, self._consumer, self._taker, self._report = source, consumer, taker, report
        self._grace, self._hasty, self._wait = grace, hasty, _SHORT_WAIT if hasty else _WAIT
        self._under_way: dict[object, _Held] = {}
        self._done: dict[object, None] = {}
        self._current: Subscription | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._broken: BrokerUnavailable | None = None
        self._empty = False
        self._out_since: float | None = None
        self._lag_unknown_since: float | None = None
        self._report_due = asyncio.Event()
        self._took = False
        self._worked = self._cut_off = False

    def idle(self, limit: float) -> bool:
        """Whether nothing is under way and nothing seems to come.

        A broker that has been unavailable, or has not answered how much waits, for longer than `limit` seconds counts.
        """
        if self._under_way:
            return False
        long_ago = time.monotonic() - limit
        unavailable = self._out_since is not None and self._out_since < long_ago
        unknown = self._lag_unknown_since is not None and self._lag_unknown_since < long_ago
        return self._empty or self._taker.closed or unavailable or unknown

    def cut_off(self) -> None:
        """Once told to stop, waits no more for what is under way: that is cancelled, and given back."""
        self._cut_off = True

    async def run(self, stop: asyncio.Event) -> None:
        """Takes records in until `stop`; a broker that is out is waited for, for ever."""
        pause = _SHORTEST_PAUSE / 2
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
                    # One that a driver let escape: nobody told us to end.
                    await self._lost(BrokerUnavailable(self._source.name, repr(cancelled)))
                except BrokerUnavailable as error:
                    await self._lost(error)
                except Exception as error:  # noqa: BLE001
                    # A driver's error that nobody foresaw may pass, as an outage does.
                    log.error("intake failed", **self._fields | _raised(error))
                    await self._lost(BrokerUnavailable(self._source.name, repr(error)[:200]))
                if not stop.is_set():
                    pause = _SHORTEST_PAUSE if self._worked else min(pause * 2, _LONGEST_PAUSE)
                    self._worked = False
                    await _either(stop, pause * random.uniform(0.5, 1.0))  # noqa: S311
        finally:
            await self._end(self._tasks)

    async def _serve(self, subscription: Subscription, stop: asyncio.Event) -> None:
        """One connection's life."""
        self._broken, self._current = None, subscription
        beside = [
            asyncio.create_task(self._extend(subscription), name="holdfast-extend"),
            asyncio.create_task(self._report_lags(subscription), name="holdfast-lag"),
        ]
        try:
            while not stop.is_set():
                await self._round(subscription)
                if self._broken is not None:
                    raise self._broken
            await self._drain()
            # What was reported last speaks of records that are done by now.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_SECONDS):
                    await self._report_lag(subscription)
        finally:
            self._current = None
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _round(self, subscription: Subscription) -> None:
        room = self._taker.bound - len(self._under_way)
        if room <= 0:
            self._news.clear()
            await _either(self._news, self._wait)
            return
        if not await self._taker.ready():
            await asyncio.sleep(_NOT_READY_SECONDS)
            return
        records = await subscription.fetch(room, self._wait)
        self._worked = True
        if self._out_since is not None:
            log.info("broker reconnected", **self._fields)
            self._out_since = None
        if records:
            self._empty, self._lag_unknown_since, self._took = False, None, True
            self._start(subscription, records)
        elif not self._under_way:
            if self._took:
                self._report_due.set()
            if self._hasty and not self._empty:
                await self._look_whether_empty(subscription)

    async def _look_whether_empty(self, subscription: Subscription) -> None:
        lag = await self._lag(subscription)
        if lag is None:
            self._lag_unknown_since = self._lag_unknown_since or time.monotonic()
        else:
            self._empty, self._lag_unknown_since = not lag.waiting, None

    async def _lag(self, subscription: Subscription) -> Lag | None:
        """How far the source is behind; None while the broker does not answer, which never ends a subscription.

        A member that joins a group, for example, may wait for that answer until it has joined.
        """
        try:
            return await subscription.lag()
        except Exception as error:  # noqa: BLE001
            log.debug("source lag unavailable", **self._fields, error=repr(error))
            return None

    def _start(self, subscription: Subscription, records: Sequence[Record]) -> None:
        fresh: list[_Held] = []
        done: list[_Held] = []
        for record in records:
            key = object() if record.id is None else (record.stream, record.id)
            if (held := self._under_way.get(key)) is not None:
                held.record, held.subscription = record, subscription
                continue
            held = _Held(key, record, subscription)
            if key in self._done:
                done.append(held)
            else:
                self._under_way[key] = held
                fresh.append(held)
        size = self._taker.batch
        for at in range(0, len(fresh), size):
            self._begin(self._take(fresh[at : at + size]))
        if done:
            self._begin(self._acknowledge(done))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="holdfast-take")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, batch: list[_Held]) -> None:
        """Hands a batch on, and acknowledges it. What was not taken is given back, for whoever gets it then."""
        try:
            try:
                await self._taker.take([held.record for held in batch])
            except Exception as error:  # noqa: BLE001
                log.error("intake batch failed", **self._fields | _raised(error))
                # The broker would hand them over at once, and again and again.
                await asyncio.sleep(_LONGEST_PAUSE * random.uniform(0.2, 0.4))  # noqa: S311
                await self._settle(batch, lambda subscription: subscription.release)
            else:
                await self._acknowledge(batch)
        finally:
            for held in batch:
                self._under_way.pop(held.key, None)
            self._news.set()

    async def _acknowledge(self, batch: list[_Held]) -> None:
        left = batch
        while left:
            told = [held.record for held in left]
            acknowledged = await self._settle(left, lambda subscription: subscription.ack)
            for held in left:
                self._done.pop(held.key, None)
                if held not in acknowledged and held.record.id is not None:
                    self._done[held.key] = None
            # Handed over anew meanwhile: under another receipt, which nobody was told of.
            left = [held for held, record in zip(left, told, strict=True) if held.record is not record]
        while len(self._done) > _MOST_DONE:
            del self._done[next(iter(self._done))]

    async def _settle(
        self,
        batch: Iterable[_Held],
        how: Callable[[Subscription], Callable[[Sequence[Record]], Awaitable[None]]],
    ) -> set[_Held]:
        """Tells the broker; returns those it was told of. A connection that is gone cannot, and another must not."""
        told = [held for held in batch if held.subscription is self._current]
        if told:
            subscription = told[0].subscription
            try:
                await how(subscription)([held.record for held in told])
            except Exception as error:  # noqa: BLE001
                # It hands them over again, which harms nobody.
                self._break(subscription, error)
                return set()
        return set(told)

    def _break(self, subscription: Subscription, error: Exception) -> None:
        """This connection is of no use any more; the loop that fetches opens another."""
        if subscription is self._current:
            if not isinstance(error, BrokerUnavailable):
                error = BrokerUnavailable(self._source.name, repr(error)[:200])
            self._broken = error

    async def _extend(self, subscription: Subscription) -> None:
        """Keeps the broker from giving away what is under way here."""
        while True:
            await asyncio.sleep(self._source.ack_timeout / 3)
            held = [held.record for held in self._under_way.values() if held.subscription is subscription]
            if held:
                try:
                    await subscription.extend(held)
                except Exception as error:  # noqa: BLE001
                    self._break(subscription, error)
                    return

    async def _report_lags(self, subscription: Subscription) -> None:
        """Reports now and then, and as soon as everything that was fetched is done."""
        while True:
            await self._report_lag(subscription)
            await _either(self._report_due, _REPORT_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
            self._report_due.clear()

    async def _report_lag(self, subscription: Subscription) -> None:
        self._took = False
        lag = await self._lag(subscription)
        try:
            await self._report(lag, None)
        except Exception as error:  # noqa: BLE001
            log.debug("source lag report failed", **self._fields, error=repr(error))

    async def _drain(self) -> None:
        """Waits for what is under way; what takes too long is cut off and given back."""
        ends = time.monotonic() + self._grace
        while self._tasks and not self._cut_off and (left := ends - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=min(left, _LOOK_SECONDS))
        given_back = list(self._under_way.values())
        await self._end(self._tasks)
        if given_back:
            log.warning("records released", **self._fields, records=len(given_back))
            await self._settle(given_back, lambda subscription: subscription.release)

    async def _end(self, tasks: Iterable["asyncio.Task[None]"]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _lost(self, error: BrokerUnavailable) -> None:
        """Says once per outage that the broker is gone."""
        if self._out_since is None:
            self._out_since = time.monotonic()
            self._empty = False
            log.warning("broker unavailable", **self._fields, error=str(error))
            try:
                await self._report(None, str(error))
            except Exception as failed:  # noqa: BLE001
                log.debug("broker outage report failed", **self._fields, error=repr(failed))

    @property
    def _fields(self) -> dict[str, object]:
        return {"consumer": self._consumer, "source": self._source.name}


def _raised(error: BaseException) -> dict[str, object]:
    told = report(error)
    return {"error": told.message, "error_type": told.type, "stack_trace": told.trace}


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, but not longer."""
    # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
