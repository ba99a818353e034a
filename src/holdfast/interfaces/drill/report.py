"""What a drill found: one check for each promise, with what was expected and what was there."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.interfaces.drill.scratch import Scratch, scratch


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `found` says what was there where it was not kept."""

    promise: str
    kept: bool
    found: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One drill that was run."""

    name: str
    kept: bool
    checks: tuple[Check, ...]
    seconds: float


def same(promise: str, found: object, expected: object) -> Check:
    """A promise that is kept if two values are the same."""
    return Check(promise, found == expected, "" if found == expected else f"found {found}, expected {expected}")


async def perform(name: str, drill: Callable[[Scratch], Awaitable[list[Check]]], dsn: str | None) -> Result:
    """Runs one drill in a scratch store of its own. Whatever goes wrong in it is a promise that was not kept."""
    started = time.monotonic()
    with scratch(dsn) as place:
        try:
            checks = tuple(await drill(place))
        except Exception as error:  # noqa: BLE001
            checks = (Check("the drill comes to its end", False, f"{type(error).__name__}: {error}"),)
    return Result(name, all(check.kept for check in checks), checks, round(time.monotonic() - started, 1))
