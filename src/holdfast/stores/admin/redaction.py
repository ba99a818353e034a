"""What was declared secret, as the store knows it: for operators' tools, which know no app."""

from collections.abc import Iterable

from holdfast.core.redaction.redact import Redaction
from holdfast.stores.operation import Query, Steps, operation


@operation(reads=True)
def redactions() -> Steps[frozenset[Redaction]]:
    """Every declaration any app ever made."""
    return frozenset(Redaction(str(pattern), str(path)) for pattern, path in (yield Query("redactions")))


@operation
def declare(wanted: Iterable[Redaction]) -> Steps[bool]:
    """Adds declarations; true when one was new. None is ever taken away: old messages hold what they hold."""
    known = yield from redactions().start()
    # Sorted, so that two apps that declare at once wait for each other and do not deadlock.
    missing = sorted(set(wanted) - known)
    for one in missing:
        yield Query("declare_redaction", {"pattern": one.pattern, "path": one.path})
    return bool(missing)
