"""Checks of brokers: whether sources and targets respond, and how far consumers are behind."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.core.errors import BrokerUnavailable, HoldfastError
from holdfast.core.failures.report import report
from holdfast.core.values.duration import format_duration
from holdfast.ops.doctor.checks import Finding, Level
from holdfast.stores.messages.intake import IntakeReport

_SECONDS = 15.0
_FAR_BEHIND = 1000
_SILENT = timedelta(minutes=5)


class CheckedEndpoint(Protocol):
    """A source or a target at a broker."""

    @property
    def name(self) -> str: ...

    async def durability_warnings(self) -> list[str]: ...


def check_brokers(endpoints: Sequence[CheckedEndpoint], seconds: float = _SECONDS) -> list[Finding]:
    """Checks that each endpoint responds within `seconds`, and that its settings do not lose confirmed records.

    Blocks. It runs its event loop in a separate thread, so that it can be called where a loop runs.
    """
    if not endpoints:
        return []
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-doctor") as thread:
        return thread.submit(asyncio.run, _check_all(endpoints, seconds)).result()


async def _check_all(endpoints: Sequence[CheckedEndpoint], seconds: float) -> list[Finding]:
    unique = {endpoint.name: endpoint for endpoint in endpoints}
    found = await asyncio.gather(*(_check(endpoint, seconds) for endpoint in unique.values()))
    return [finding for findings in found for finding in findings]


async def _check(endpoint: CheckedEndpoint, seconds: float) -> list[Finding]:
    try:
        async with asyncio.timeout(seconds):
            warnings = await endpoint.durability_warnings()
    except BrokerUnavailable as error:
        # The cause contains no password. The remedy of the error is for applications, not for operators.
        cause = f" ({error.cause})" if error.cause else ""
        return [_unreachable(endpoint, f"cannot be reached{cause}")]
    except TimeoutError:
        return [_unreachable(endpoint, f"did not respond within {seconds:g} s")]
    except HoldfastError as error:
        return [Finding("brokers", Level.FAIL, f"{endpoint.name}: {error}", "fix the declaration or the settings")]
    except Exception as error:  # noqa: BLE001  one broken endpoint must not hide the others
        failure = report(error)
        return [_unreachable(endpoint, f"could not be checked: {failure.type}: {failure.message}")]
    if not warnings:
        return [Finding("brokers", Level.OK, f"{endpoint.name} responds, and no setting was found that loses records")]
    return [_warning(endpoint, text) for text in warnings]


def _unreachable(endpoint: CheckedEndpoint, problem: str) -> Finding:
    remedy = "check that it runs and that its address is correct; workers reconnect automatically"
    return Finding("brokers", Level.FAIL, f"{endpoint.name} {problem}", remedy)


def _warning(endpoint: CheckedEndpoint, text: str) -> Finding:
    """A warning, not a failure: the setting may be intended."""
    what, _, remedy = text.removeprefix(f"{endpoint.name}: ").partition("; ")
    return Finding("brokers", Level.WARN, f"{endpoint.name}: {what}", remedy)


def check_intakes(intakes: Sequence[IntakeReport], now: datetime) -> Iterator[Finding]:
    """Checks how far consumers are behind their sources, by the last reports of the workers."""
    found = [finding for one in intakes if (finding := _intake(one, now)) is not None]
    yield from found
    if intakes and not found:
        yield Finding("sources", Level.OK, "every source is read, without a large backlog")


def _intake(one: IntakeReport, now: datetime) -> Finding | None:
    silent = now - one.reported_at
    if silent > _SILENT:
        since = format_duration(timedelta(seconds=round(silent.total_seconds())))
        return Finding(
            "sources",
            Level.WARN,
            f"no worker has reported for {since} that it reads {one.source} for {one.consumer}",
            f"run a worker whose app has {one.consumer}, or `holdfast consumers retire {one.consumer}` if it was "
            "removed",
        )
    if one.problem is not None:
        message = f"{one.source} is not read for {one.consumer}: {one.problem}"
        return Finding("sources", Level.FAIL, message, "fix it; the worker continues automatically")
    if one.waiting is not None and one.waiting >= _FAR_BEHIND:
        unacknowledged = f", {one.unacknowledged:,} are in progress" if one.unacknowledged else ""
        return Finding(
            "sources",
            Level.WARN,
            f"{one.waiting:,} records of {one.source} wait for {one.consumer}{unacknowledged}",
            "run more workers, or see `holdfast consumers list`",
        )
    return None
