"""Translation of database errors, also when a driver or framework wraps them."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import StoreBusy
from holdfast.stores.operation import ErrorCondition, Query

LEASE_LOST = ErrorCondition("HF001", "holdfast: lease lost")
ALREADY_HANDLED = ErrorCondition("HF002", "holdfast: already handled")
RESERVATION_LOST = ErrorCondition("HF003", "holdfast: reservation lost")
WRITE_LOCKED = ErrorCondition("SQLITE_BUSY")
_OLD_SNAPSHOT = ErrorCondition("SQLITE_BUSY_SNAPSHOT")


def translate(error: Exception, query: Query) -> Exception | None:
    """The Holdfast error for a database error of `query`, or None to keep the driver's error."""
    for link in _chain(error):
        if _is(link, _OLD_SNAPSHOT):
            return StoreBusy(cause=_OLD_SNAPSHOT.code)
        if query.raises is None:
            continue
        condition, create = query.raises
        if _is(link, condition):
            return create()
        if _is(link, WRITE_LOCKED):
            # These statements run in the caller's transaction, which has read before: waiting for the lock would not help.
            return StoreBusy(cause=WRITE_LOCKED.code)
    return None


@contextmanager
def translating(query: Query) -> Iterator[None]:
    """Translates errors inside the block like errors of `query`."""
    try:
        yield
    except Exception as error:
        if found := translate(error, query):
            raise found from error
        raise


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors it wraps: SQLAlchemy stores the driver's error as `orig`, Django as the cause."""
    link: BaseException | None = error
    for _ in range(5):
        if link is None:
            return
        yield link
        orig = getattr(link, "orig", None)
        link = orig if isinstance(orig, BaseException) else link.__cause__


def _is(link: BaseException, condition: ErrorCondition) -> bool:
    # The code is `sqlstate` in psycopg and asyncpg, `pgcode` in psycopg2.
    state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
    if (state or getattr(link, "sqlite_errorname", None)) == condition.code:
        return True
    return state is None and condition.text != "" and str(link).startswith(condition.text)
