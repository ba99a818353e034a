"""Demo output: a live table on a terminal, plain lines elsewhere."""

from collections import deque
from textwrap import wrap
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.interfaces.demo.shop import CONSUMERS
from holdfast.interfaces.demo.snapshot import Snapshot, State

_LOG_ROWS = 12
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


class Screen:
    """Output of the demo: one line per event, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, monotonic()

    def say(self, text: str) -> None:
        """Prints one line."""
        self._console.print(f"{monotonic() - self._began:5.1f}s  {text}", soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Shows the current state. Plain lines contain the numbers."""

    def close(self) -> None:
        """Stops updating; ordinary output can follow."""


class LiveScreen(Screen):
    """A table that is updated in place, with the latest lines below."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console)
        self._title = title
        self._lines: deque[tuple[float, str]] = deque(maxlen=_LOG_ROWS)
        self._snapshot = Snapshot.empty()
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
            Padding(self._log_lines(), (1, 0, 0, 0)),
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
        workers = [f"{pid} ({in_flight} in flight)" for pid, in_flight in sorted(self._snapshot.workers.items())]
        return Text(f"workers   {'   '.join(workers) or 'starting …'}")

    def _log_lines(self) -> Table:
        """The newest lines that fit; the height is constant, so the table does not move."""
        size = self._console.size
        room = max(2, min(_LOG_ROWS, size.height - _OTHER_ROWS))
        rows: deque[tuple[str, Text]] = deque()
        for at, text in reversed(self._lines):
            needed = len(wrap(text, max(20, size.width - _TIME_COLUMNS)))
            if needed > room:
                break
            room -= needed
            rows.appendleft((f"{at:.1f}s", Text(text, style="dim" if rows else "bold")))
        lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        lines.add_column(justify="right", style="dim", no_wrap=True, width=_TIME_COLUMNS - 2)
        lines.add_column(overflow="fold")
        for time, line in (*rows, *[("", Text(""))] * room):
            lines.add_row(time, line)
        return lines


def open_screen(console: Console, title: str) -> Screen:
    """A live screen on a terminal, a plain one elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, title)
    console.print(title, soft_wrap=True)
    return Screen(console)
