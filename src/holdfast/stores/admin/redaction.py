"""Declared secret fields in the store, for operator tools that run without the app."""

from collections.abc import Iterable

from holdfast.core.redaction.redact import Redaction
from holdfast.stores.operation import Query, Steps, operation


@operation(reads=True)
def redactions() -> Steps[frozenset[Redaction]]:
    """The declared secret fields of all apps."""
    return frozenset(Redaction(str(pattern), str(path)) for pattern, path in (yield Query("redactions")))


@operation
def declare(wanted: Iterable[Redaction]) -> Steps[bool]:
    """Adds declarations; True if one was new. Declarations are never removed, because old messages keep their fields."""
    known = yield from redactions().start()
    # Sorted, so that two apps that declare at the same time do not deadlock.
    missing = sorted(set(wanted) - known)
    for one in missing:
        yield Query("declare_redaction", {"pattern": one.pattern, "path": one.path})
    return bool(missing)
