"""What the visitor sees: a calm live view on a terminal, plain lines anywhere else."""

from collections import deque
from textwrap import wrap
from time import monotonic
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.interfaces.demo.shop import CONSUMERS
from holdfast.interfaces.demo.snapshot import Snapshot, State

_STORY_ROWS = 12
_OTHER_ROWS = 14
_TIME_COLUMNS = 8
_COLOURS = {
    State.WAITING: "default",
    State.IN_FLIGHT: "cyan",
    State.RETRYING: "yellow",
    State.PARKED: "magenta",
    State.DEAD: "red",
    State.DELIVERED: "green",
}


class Screen(Protocol):
    """Where the story is told."""

    def say(self, text: str) -> None:
        """The story goes on: one line."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """How things stand now."""
        ...

    def close(self) -> None:
        """What was shown stays; afterwards ordinary lines may follow."""
        ...


class PlainScreen:
    """One line for each turn of the story, with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, monotonic()

    def say(self, text: str) -> None:
        self._console.print(f"{monotonic() - self._began:5.1f}s  {text}", soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Nothing: the numbers are in the lines."""

    def close(self) -> None:
        """Nothing to do."""


class LiveScreen:
    """A table that changes in place, with the last lines of the story below."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._began = console, title, monotonic()
        self._lines: deque[tuple[float, str]] = deque(maxlen=_STORY_ROWS)
        self._snapshot = Snapshot.nothing()
        self._live = Live(self._picture(), console=console, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def say(self, text: str) -> None:
        self._lines.append((monotonic() - self._began, text))
        self._refresh()

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._refresh()

    def close(self) -> None:
        self._live.stop()

    def _refresh(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        # The last line is empty and not padded: a terminal echoes ^C there, and a full line would wrap.
        return Group(
            Text(self._title, style="bold"),
            Padding(self._deliveries(), (1, 0)),
            self._workers(),
            Padding(self._story(), (1, 0, 0, 0)),
            Text(""),
        )

    def _deliveries(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", footer_style="bold")
        snapshot = self._snapshot
        table.add_column("consumer", "all")
        table.add_column("queue")
        for state in State:
            table.add_column(state, str(snapshot.count(state)), justify="right")
        table.show_footer = True
        for consumer in CONSUMERS:
            counts = [(state, snapshot.count(state, consumer=consumer)) for state in State]
            numbers = [Text(str(n), style=_COLOURS[state] if n else "dim") for state, n in counts]
            table.add_row(consumer, Text(snapshot.queues.get(consumer, ""), style="dim"), *numbers)
        return table

    def _workers(self) -> Text:
        held = [f"{pid} ({in_flight} in flight)" for pid, in_flight in sorted(self._snapshot.workers.items())]
        return Text(f"workers   {'   '.join(held) or 'starting …'}")

    def _story(self) -> Table:
        """The newest lines, as many as fit; the height stays the same, so that nothing jumps."""
        size = self._console.size
        room = max(2, min(_STORY_ROWS, size.height - _OTHER_ROWS))
        rows: deque[tuple[str, Text]] = deque()
        for at, text in reversed(self._lines):
            needed = len(wrap(text, max(20, size.width - _TIME_COLUMNS)))
            if needed > room:
                break
            room -= needed
            rows.appendleft((f"{at:.1f}s", Text(text, style="dim" if rows else "bold")))
        story = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        story.add_column(justify="right", style="dim", no_wrap=True, width=_TIME_COLUMNS - 2)
        story.add_column(overflow="fold")
        for time, line in (*rows, *[("", Text(""))] * room):
            story.add_row(time, line)
        return story


def open_screen(console: Console, title: str) -> Screen:
    """The live view if there is a terminal to show it on."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, title)
    console.print(title, soft_wrap=True)
    return PlainScreen(console)
