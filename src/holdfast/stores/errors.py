"""Translation of database errors, also when a driver or framework wraps them."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from holdfast.core.errors import AlreadyHandled, HoldfastError, LeaseLost, RebuildLost, ReservationLost, StoreBusy
from holdfast.stores.operation import Query

_LEASE_LOST = ("HF001", "holdfast: lease lost")
_ALREADY_HANDLED = ("HF002", "holdfast: already handled")
_RESERVATION_LOST = ("HF003", "holdfast: reservation lost")


def translate(error: Exception, query: Query) -> HoldfastError | None:
    """The Holdfast error for a database error of `query`, or None to keep the driver's error."""
    values = query.values
    for link in _chain(error):
        name = getattr(link, "sqlite_errorname", "")
        # A transaction that has read before does not wait for the write lock: SQLite refuses it at once.
        if name == "SQLITE_BUSY_SNAPSHOT" or (name == "SQLITE_BUSY" and query.name == "lock_registry"):
            return StoreBusy(cause=name)
        if query.name == "complete" and _says(link, *_LEASE_LOST):
            return LeaseLost(UUID(str(values["delivery_id"])), int(str(values["fence"])))
        if query.name == "rebuild_checkpoint" and _says(link, *_LEASE_LOST):
            return RebuildLost(str(values["name"]))
        if query.name == "record_handled" and _says(link, *_ALREADY_HANDLED):
            return AlreadyHandled(str(values["consumer"]), str(values["key"]))
        if query.name == "complete_request" and _says(link, *_RESERVATION_LOST):
            return ReservationLost(str(values["scope"]), str(values["key"]))
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


def _says(link: BaseException, sqlstate: str, text: str) -> bool:
    # The code is `sqlstate` in psycopg and asyncpg, `pgcode` in psycopg2. SQLite has only the text of RAISE.
    found = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
    return found == sqlstate or (found is None and str(link).startswith(text))
