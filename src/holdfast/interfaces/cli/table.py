"""Tables that fit the terminal width. Rows that do not fit are wrapped into several lines; ids are never truncated."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.interfaces.presentation.formatting import ago, moment, printable

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")

_GAP = 2
_MIN_LOOSE = 24


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table.

    A `loose` column may be truncated. `longer` formats a longer text, used if it fits. In wrapped rows, `titled` and
    right-aligned columns keep their title, because a bare number or time would be ambiguous.
    """

    title: str
    text: Callable[[T], object]
    right: bool = False
    loose: bool = False
    longer: Callable[[T], object] | None = None
    style: Callable[[T], str] | None = None
    titled: bool = False


def time_column(title: str, at: Callable[[T], datetime | None], now: datetime, never: str = "") -> Column[T]:
    """A column with a relative time, followed by the absolute time if it fits."""
    return Column(title, lambda one: ago(at(one), now) or never, longer=lambda one: moment(at(one), now) or never)


def count_column(title: str, count: Callable[[T], int], style: str = "") -> Column[T]:
    """A column with a number. `style` applies to every number but zero."""
    return Column(title, lambda one: f"{count(one):,}", right=True, style=lambda one: style if count(one) else "")


def lines_of(items: Iterable[T], columns: Sequence[Column[T]], width: int) -> "list[Text]":
    """The lines of a table that is at most `width` wide, or of wrapped rows if no table fits."""
    items = list(items)
    for longer in (True, False):
        rows = [[_cell(column, item, longer) for column in columns] for item in items]
        widths = _widths(columns, rows, width, 2 * _MIN_LOOSE if longer else _MIN_LOOSE)
        if widths is not None:
            return [*_head(columns, widths), *(_line(columns, row, widths) for row in rows)]
    rows = [[_cell(column, item, False) for column in columns] for item in items]
    return [line for row in rows for line in _wrapped_row(columns, row, width)]


def _cell(column: Column[T], item: T, longer: bool) -> "Text":
    from rich.text import Text

    shown = (column.longer if longer and column.longer is not None else column.text)(item)
    style = column.style(item) if column.style is not None else ""
    return Text(printable("" if shown is None else str(shown)), style=style)


def _widths(columns: Sequence[Column[T]], rows: Sequence[Sequence["Text"]], width: int, least: int) -> list[int] | None:
    """The width of each column, or None if the columns do not fit even with loose ones truncated."""
    widths = [max([len(column.title), *(row[at].cell_len for row in rows)]) for at, column in enumerate(columns)]
    over = sum(widths) + _GAP * (len(columns) - 1) - width
    for at in reversed(range(len(columns))):
        if over > 0 and columns[at].loose:
            given = min(over, max(0, widths[at] - least))
            widths[at] -= given
            over -= given
    return None if over > 0 else widths


def _head(columns: Sequence[Column[T]], widths: Sequence[int]) -> "list[Text]":
    from rich.text import Text

    titles = [Text(column.title, style="bold") for column in columns]
    ruler = Text("─" * (sum(widths) + _GAP * (len(widths) - 1)), style="dim")
    return [_line(columns, titles, widths), ruler]


def _line(columns: Sequence[Column[T]], cells: Sequence["Text"], widths: Sequence[int]) -> "Text":
    from rich.text import Text

    line = Text(end="")
    for at, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        cell.truncate(width, overflow="ellipsis")
        space = " " * (width - cell.cell_len)
        line.append(" " * _GAP if at else "")
        line.append_text(Text(space) + cell if column.right else cell + Text(space))
    line.rstrip()
    return line


def _wrapped_row(columns: Sequence[Column[T]], cells: Sequence["Text"], width: int) -> "Iterable[Text]":
    """One row as wrapped lines."""
    from rich.text import Text

    line = Text()
    for column, cell in zip(columns, cells, strict=True):
        if not cell.plain:
            continue
        part = Text.assemble((f"{column.title.lower()} ", "dim"), cell) if column.right or column.titled else cell
        if column.loose:
            part.truncate(max(_MIN_LOOSE, width - 2), overflow="ellipsis")
        if line.plain.strip() and line.cell_len + _GAP + part.cell_len > width:
            yield line
            line = Text("  ")
        elif line.plain.strip():
            line.append(" " * _GAP)
        line.append_text(part)
    yield line
