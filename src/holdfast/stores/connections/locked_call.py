"""A statement under advisory locks, as the text of one simple-protocol message.

Such a message is one implicit transaction, and each of its statements has a new snapshot: the statement sees what the
last owner of the lock committed. The server starts it only when the message is complete, so a client that is stopped
while it sends holds no lock. The locks end with the message, before the client reads the rows.
"""

import re
from collections.abc import Iterator

from holdfast.stores.dialect import LockedCall

_NUMBERED = re.compile(r"\$(\d+)")


def locked_scripts(text: str, call: LockedCall, prepared: set[str] | None) -> Iterator[str]:
    """The messages to send in order; the rows are the last result of the last one.

    `prepared` are the statements that the session has, so that each is planned once; None for a session that keeps
    nothing, such as one behind a pooler.
    """
    lock = "".join(f"select pg_catalog.pg_advisory_xact_lock({key}); " for key in call.locks)
    if prepared is None:
        yield lock + _NUMBERED.sub(lambda match: call.arguments[int(match[1]) - 1], text)
        return
    if call.name not in prepared:
        yield f"prepare {call.name}{_list(call.types)} as {text}"
        prepared.add(call.name)
    yield f"{lock}execute {call.name}{_list(call.arguments)}"


def note_prepared(prepared: set[str], name: str, error: Exception) -> None:
    """Corrects what is known about the statements of a session after an error. The caller then tries again.

    The driver removes all statements after a rollback. A caller that was cancelled while it prepared a statement did not
    see that it exists.
    """
    match getattr(error, "sqlstate", None):
        case "26000":
            prepared.clear()
        case "42P05":
            prepared.add(name)


def _list(values: tuple[str, ...]) -> str:
    """The values in parentheses; nothing without values, because PostgreSQL refuses empty parentheses."""
    return f"({', '.join(values)})" if values else ""
