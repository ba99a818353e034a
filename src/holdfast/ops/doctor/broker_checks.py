"""Brokers, as the doctor sees them: what an app reads from and sends to, and how the reading stands."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.core.duration import format_duration
from holdfast.core.errors import BrokerUnavailable, HoldfastError
from holdfast.core.failures.report import report
from holdfast.ops.doctor.checks import Finding, Level
from holdfast.stores.messages.intake import IntakeReport

_SECONDS = 15.0
_FAR_BEHIND = 1000
_SILENT = timedelta(minutes=5)


class Place(Protocol):
    """A source or a target."""

    @property
    def name(self) -> str: ...

    async def durability_warnings(self) -> list[str]: ...


def examine(places: Sequence[Place], seconds: float = _SECONDS) -> list[Finding]:
    """Whether each place answers within `seconds`, and what in its settings can lose what it confirmed.

    Blocks, also where an event loop runs: it has a loop and a thread of its own.
    """
    if not places:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-doctor") as thread:
        return thread.submit(asyncio.run, _examine(places, seconds)).result()


async def _examine(places: Sequence[Place], seconds: float) -> list[Finding]:
    unique = {place.name: place for place in places}
    found = await asyncio.gather(*(_look(place, seconds) for place in unique.values()))
    return [finding for findings in found for finding in findings]


async def _look(place: Place, seconds: float) -> list[Finding]:
    try:
        async with asyncio.timeout(seconds):
            doubts = await place.durability_warnings()
    except BrokerUnavailable as error:
        # Ours, and told the password would not be in it; the remedy is the doctor's to give.
        said = f" ({error.cause})" if error.cause else ""
        return [_unreachable(place, f"cannot be reached{said}")]
    except TimeoutError:
        return [_unreachable(place, f"did not answer within {seconds:g} s")]
    except HoldfastError as error:
        return [Finding("brokers", Level.FAIL, f"{place.name}: {error}", "mend the declaration or the settings")]
    except Exception as error:  # noqa: BLE001  one broken place must not hide the others
        told = report(error)
        return [_unreachable(place, f"could not be examined: {told.type}: {told.message}")]
    if not doubts:
        return [Finding("brokers", Level.OK, f"{place.name} answers, and no setting was found that loses records")]
    return [_doubt(place, doubt) for doubt in doubts]


def _unreachable(place: Place, problem: str) -> Finding:
    remedy = "check that it runs and that its address is right; workers go on by themselves once it answers"
    return Finding("brokers", Level.FAIL, f"{place.name} {problem}", remedy)


def _doubt(place: Place, doubt: str) -> Finding:
    """A warning and no failure: it may be meant so."""
    what, _, remedy = doubt.removeprefix(f"{place.name}: ").partition("; ")
    return Finding("brokers", Level.WARN, f"{place.name}: {what}", remedy)


def check_intakes(intakes: Sequence[IntakeReport], now: datetime) -> Iterator[Finding]:
    """How far consumers are behind their sources, as workers last reported it."""
    found = [finding for one in intakes if (finding := _intake(one, now)) is not None]
    yield from found
    if intakes and not found:
        yield Finding("sources", Level.OK, "every source is read, and nearly to its end")


def _intake(one: IntakeReport, now: datetime) -> Finding | None:
    silent = now - one.reported_at
    if silent > _SILENT:
        since = format_duration(timedelta(seconds=round(silent.total_seconds())))
        return Finding(
            "sources",
            Level.WARN,
            f"no worker has reported for {since} that it reads {one.source} for {one.consumer}",
            f"run a worker whose app has {one.consumer}, or `holdfast consumers retire {one.consumer}` if it is gone "
            "for good",
        )
    if one.problem is not None:
        message = f"{one.source} is not read for {one.consumer}: {one.problem}"
        return Finding("sources", Level.FAIL, message, "mend it; the worker goes on by itself")
    if one.waiting is not None and one.waiting >= _FAR_BEHIND:
        held = f", {one.unacknowledged:,} are in work" if one.unacknowledged else ""
        return Finding(
            "sources",
            Level.WARN,
            f"{one.waiting:,} records of {one.source} wait for {one.consumer}{held}",
            "run more workers, or look at what holds it back with `holdfast consumers list`",
        )
    return None
