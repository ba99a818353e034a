"""Verdicts: the four kinds of failure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from holdfast.core.values.text import sanitize

_RESOURCE_LIMIT = 200


class VerdictKind(StrEnum):
    """The four kinds of failure."""

    RETRY = "retry"
    DEAD = "dead"
    BLOCK = "block"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The kind of a failure, and how long or for which resource to wait.

    `after` and `until` are requests: the retry policy limits them, and a block lasts at least `after`. `resource` is the
    unavailable resource (block) or the resource with the open circuit (park).
    """

    kind: VerdictKind
    after: timedelta | None = None
    until: datetime | None = None
    resource: str | None = None

    @classmethod
    def retry(cls, after: timedelta | None = None) -> Self:
        """Retry after the wait of the policy, or after the requested one; the attempt counts."""
        return cls(VerdictKind.RETRY, after=after)

    @classmethod
    def dead(cls) -> Self:
        """A retry cannot succeed: dead letter now."""
        return cls(VerdictKind.DEAD)

    @classmethod
    def block(cls, resource: str) -> Self:
        """Our own `resource` is unavailable: block the consumer, spend no attempt."""
        return cls(VerdictKind.BLOCK, resource=sanitize(resource, _RESOURCE_LIMIT))

    @classmethod
    def park(cls, resource: str, until_or_delay: datetime | timedelta | None = None) -> Self:
        """The circuit of `resource` is open: run again when it may close, spend no attempt."""
        name = sanitize(resource, _RESOURCE_LIMIT)
        if isinstance(until_or_delay, datetime):
            return cls(VerdictKind.PARK, until=until_or_delay, resource=name)
        return cls(VerdictKind.PARK, after=until_or_delay, resource=name)
