"""Results of a drill: one check per promise, with the expected and the actual value."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.interfaces.drill.scratch import ScratchStore, scratch


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One promise. `found` describes the actual value if it was broken."""

    promise: str
    kept: bool
    found: str = ""


@dataclass(frozen=True, slots=True)
class DrillResult:
    """The result of one drill."""

    name: str
    kept: bool
    checks: tuple[PromiseCheck, ...]
    seconds: float


def check_equal(promise: str, found: object, expected: object) -> PromiseCheck:
    """The check of a promise, which is kept if both values are equal."""
    return PromiseCheck(promise, found == expected, "" if found == expected else f"found {found}, expected {expected}")


async def perform(
    name: str,
    drill: Callable[[ScratchStore], Awaitable[list[PromiseCheck]]],
    dsn: str | None,
    redis: str | None = None,
) -> DrillResult:
    """Runs one drill in a temporary store. An exception counts as a broken promise."""
    started = time.monotonic()
    with scratch(dsn, redis) as store:
        try:
            checks = tuple(await drill(store))
        except Exception as error:  # noqa: BLE001
            checks = (PromiseCheck("the drill runs to its end", False, f"{type(error).__name__}: {error}"),)
    return DrillResult(name, all(check.kept for check in checks), checks, round(time.monotonic() - started, 1))
