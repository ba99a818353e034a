"""`hf.events`: reads the event store in order."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from holdfast.core.events.pattern import ANY
from holdfast.core.message import Message
from holdfast.runtime.runtime import Runtime
from holdfast.stores.event_log.log import START, Cursor, EventFilter, LogPage, LogReader, read_log


class EventPage(NamedTuple):
    """Events in order. Pass `cursor` as `after` to read the next page; if `more` is false, this was the last page."""

    events: list[Message]
    cursor: str
    more: bool


class Events:
    """Reads all published events in order. An event that commits late is not missed."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    @property
    def sync(self) -> "SyncEvents":
        return SyncEvents(self._runtime)

    async def read(self, types: Sequence[str] = (ANY,), *, after: str | None = None, limit: int = 100) -> EventPage:
        """A page of events of these types or prefixes (`order.*`), from the first event or from the cursor of a page.

        The position is not stored: store the cursor together with the effect of the events. A page may contain fewer
        events than `limit`, or none, while `more` is true.
        """
        runtime = self._runtime()
        await runtime.registration.prepare()
        return _page(await runtime.store.run(read_log(_cursor(after), _wanted(types), limit)))

    async def pages(self, types: Sequence[str] = (ANY,), *, after: str | None = None) -> AsyncIterator[EventPage]:
        """All pages to the end of the log. For many events this is faster than repeated `read` calls."""
        runtime = self._runtime()
        await runtime.registration.prepare()
        reader, more = LogReader(runtime.store, _wanted(types), _cursor(after)), True
        while more:
            page = _page(await reader.read())
            more = page.more
            yield page


class SyncEvents:
    """The blocking methods of `Events`."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    def read(self, types: Sequence[str] = (ANY,), *, after: str | None = None, limit: int = 100) -> EventPage:
        """`Events.read`, blocking."""
        runtime = self._runtime()
        runtime.registration.prepare_sync()
        return _page(runtime.store.run_sync(read_log(_cursor(after), _wanted(types), limit)))


def _wanted(types: Sequence[str]) -> EventFilter:
    return EventFilter((types,) if isinstance(types, str) else tuple(types))


def _cursor(after: str | None) -> Cursor:
    return START if after is None else Cursor.parse(after)


def _page(page: LogPage) -> EventPage:
    return EventPage(page.events, str(page.cursor), page.more)
