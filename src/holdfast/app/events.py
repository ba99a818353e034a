"""`hf.events`: the event store, read in its order."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.events.pattern import ANY
from holdfast.core.message import Message
from holdfast.stores.event_log.log import START, Cursor, EventFilter, LogPage, LogReader, read_log

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


class EventPage(NamedTuple):
    """Events in order; pass `cursor` as `after` to go on behind them. Without `more` there were no others then."""

    events: list[Message]
    cursor: str
    more: bool


class Events:
    """Everything that was published, in an order in which nothing that commits late is missed."""

    def __init__(self, app: "Holdfast") -> None:
        self._app = app

    @property
    def sync(self) -> "SyncEvents":
        return SyncEvents(self._app)

    async def read(self, types: Sequence[str] = (ANY,), *, after: str | None = None, limit: int = 100) -> EventPage:
        """A page of events of these types or prefixes (`order.*`), from the first on or behind a page's cursor.

        Nothing is remembered of it: keep the cursor where its effect is kept. A page may hold fewer, or none, and still
        have `more` behind it.
        """
        await self._app._prepare(None)
        return _page(await self._app.store.run(read_log(_cursor(after), _wanted(types), limit)))

    async def pages(self, types: Sequence[str] = (ANY,), *, after: str | None = None) -> AsyncIterator[EventPage]:
        """Page by page to the end: the way to read very many, which are looked through once."""
        await self._app._prepare(None)
        reader, more = LogReader(self._app.store, _wanted(types), _cursor(after)), True
        while more:
            page = _page(await reader.read())
            more = page.more
            yield page


class SyncEvents:
    """The blocking twins."""

    def __init__(self, app: "Holdfast") -> None:
        self._app = app

    def read(self, types: Sequence[str] = (ANY,), *, after: str | None = None, limit: int = 100) -> EventPage:
        """`Events.read`, blocking."""
        self._app._prepare_sync(None)
        return _page(self._app.store.run_sync(read_log(_cursor(after), _wanted(types), limit)))


def _wanted(types: Sequence[str]) -> EventFilter:
    return EventFilter((types,) if isinstance(types, str) else tuple(types))


def _cursor(after: str | None) -> Cursor:
    return START if after is None else Cursor.parse(after)


def _page(page: LogPage) -> EventPage:
    return EventPage(page.events, str(page.cursor), page.more)
