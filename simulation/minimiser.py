"""Reduces a failing seed to the fewest faults that still break the same check."""

from collections.abc import Sequence
from dataclasses import replace

from simulation.database import AnyDatabase
from simulation.run import Result, simulate


def minimise(failed: Result, database: AnyDatabase, runs: int = 60) -> Result:
    """The smallest failing result that at most this many runs find.

    Each run leaves out a part of the faults, at first half of them, later single ones. A part whose removal keeps the
    same check failing stays out.
    """
    checks = {violation.check for violation in failed.violations}
    best, kept = failed, [fault.address for fault in failed.faults]
    size = max(1, len(kept) // 2)
    while runs > 0 and kept:
        smaller = False
        for start in range(0, len(kept), size):
            if runs <= 0:
                break
            runs -= 1
            found = _attempt(best, [*kept[:start], *kept[start + size :]], database)
            if checks & {violation.check for violation in found.violations}:
                best, kept, smaller = found, [fault.address for fault in found.faults], True
                break
        if not smaller:
            if size == 1:
                break
            size = max(1, size // 2)
        else:
            size = min(size, max(1, len(kept) // 2))
    return best


def _attempt(failed: Result, addresses: Sequence[str], database: AnyDatabase) -> Result:
    return simulate(replace(failed.settings, only=tuple(addresses)), database)
