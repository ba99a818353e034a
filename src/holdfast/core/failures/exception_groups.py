"""Flattening of exception groups: a group is classified and shown by its members."""

from __future__ import annotations

from collections.abc import Iterator

_STEPS = 10_000


def leaves(exc: BaseException, limit: int) -> Iterator[BaseException]:
    """Yield at most `limit` exceptions that are not groups, in order, at any nesting depth."""
    waiting, found = [exc], 0
    for _ in range(_STEPS):
        if not waiting or found == limit:
            return
        member = waiting.pop()
        if isinstance(member, BaseExceptionGroup):
            waiting.extend(reversed(member.exceptions[:_STEPS]))
        else:
            found += 1
            yield member
