"""Faults: which store operation of which process meets one, selected by the seed."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b


class Fault(StrEnum):
    """What happens around one operation of the store."""

    REFUSED = "refused"
    """The connection fails before the operation."""
    REPLY_LOST = "reply lost"
    """The operation commits, and the caller gets an error."""
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"
    """The process dies after the commit, without learning of it."""
    PAUSED_BEFORE = "paused before"
    PAUSED_AFTER = "paused after"
    BLOCKED = "blocked"
    """The event loop stands still, and the thread that renews the lease continues."""
    OUTAGE = "outage"
    """For a while the database refuses every operation of every process."""


_WEIGHTS = (
    (Fault.REFUSED, 3),
    (Fault.REPLY_LOST, 5),
    (Fault.KILLED_BEFORE, 2),
    (Fault.KILLED_AFTER, 3),
    (Fault.PAUSED_BEFORE, 3),
    (Fault.PAUSED_AFTER, 3),
    (Fault.BLOCKED, 1),
)
OUTAGE_ADDRESS = "outage"
_TOTAL = sum(weight for _, weight in _WEIGHTS)


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault at an address, such as `worker-1.2#57`."""

    address: str
    fault: Fault
    size: float
    """From 0 to 1: how long a pause or an outage is."""


class FaultPlan:
    """The faults of a seed. The address of an operation alone decides, so that leaving one out does not move the others.

    With `only`, all other faults are left out: the minimiser uses it.
    """

    def __init__(self, seed: int, rate: float, only: Collection[str] | None = None) -> None:
        self._seed, self._rate, self._only = seed, rate, None if only is None else frozenset(only)
        self.applied: list[Planned] = []
        self.enabled = True

    def at(self, address: str, factor: int = 1) -> Planned | None:
        """The fault at this address, if any; it counts as applied."""
        if not self.enabled:
            return None
        digest = blake2b(f"{self._seed}/{address}".encode(), digest_size=12).digest()
        if int.from_bytes(digest[:4], "big") / 2**32 >= self._rate * factor:
            return None
        if self._only is not None and address not in self._only:
            return None
        choice = int.from_bytes(digest[4:8], "big") % _TOTAL
        for fault, weight in _WEIGHTS:
            if choice < weight:
                planned = Planned(address, fault, int.from_bytes(digest[8:], "big") / 2**32)
                self.applied.append(planned)
                return planned
            choice -= weight
        raise AssertionError("the weights do not add up")

    def outage(self) -> Planned | None:
        """The outage of this seed; None if it is left out."""
        if self._only is not None and OUTAGE_ADDRESS not in self._only:
            return None
        digest = blake2b(f"{self._seed}/{OUTAGE_ADDRESS}".encode(), digest_size=4).digest()
        planned = Planned(OUTAGE_ADDRESS, Fault.OUTAGE, int.from_bytes(digest, "big") / 2**32)
        self.applied.append(planned)
        return planned
