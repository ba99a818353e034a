"""Event patterns: an exact type, a prefix with ``.*`` for everything below it, or ``*``."""

from __future__ import annotations

from holdfast.core.errors import InvalidName
from holdfast.core.values.names import check_type

ANY = "*"


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it is ``*``, a type, or a type followed by ``.*``; else raise `InvalidName`."""
    if pattern == ANY:
        return pattern
    try:
        check_type(pattern.removesuffix(".*") if isinstance(pattern, str) else pattern)
    except InvalidName as wrong:
        allowed = "an event type such as order.placed, a prefix such as order.*, or *"
        raise InvalidName("pattern", pattern, wrong.problem, allowed) from None
    return pattern


def matches(pattern: str, type: str) -> bool:
    """Say whether a consumer of `pattern` gets messages of `type`.

    ``order.*`` matches at any depth below ``order``, not ``order`` itself.

    >>> matches("order.*", "order.line.added")
    True
    """
    if pattern.endswith(".*"):
        return type.startswith(pattern[:-1])
    return pattern in (type, ANY)


def overlap(first: str, second: str) -> bool:
    """Say whether a type exists that both patterns match.

    >>> overlap("order.*", "order.line.*"), overlap("order.*", "order")
    (True, False)
    """
    if ANY in (first, second):
        return True
    if first.endswith(".*") and second.endswith(".*"):
        return first[:-1].startswith(second[:-1]) or second[:-1].startswith(first[:-1])
    return matches(first, second) or matches(second, first)


def candidates(type: str) -> tuple[str, ...]:
    """Return every pattern that matches `type`, from the exact one to ``*``, each once.

    >>> candidates("order.placed")
    ('order.placed', 'order.*', '*')
    """
    found = [type]
    end = type.rfind(".")
    while end > 0:
        found.append(type[:end] + ".*")
        end = type.rfind(".", 0, end)
    found.append(ANY)
    return tuple(found)
