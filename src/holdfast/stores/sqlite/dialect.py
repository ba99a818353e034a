"""How SQLite runs a query: step by step inside one write transaction, batches row by row."""

from collections.abc import Generator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID

import orjson

from holdfast.core.names import check_schema
from holdfast.stores.dialect import Answer, Parameters, Style
from holdfast.stores.operation import Columns, Query, Row, Rows
from holdfast.stores.statement import ONCE, RETURNED, Statements, Step, parameters

# Whole milliseconds. julianday() is exact to well below one, and 'now' stands still within a statement.
_NOW = "cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer)"


class SqliteDialect:
    """Statements with a table prefix in place of a schema."""

    name = "sqlite"

    def __init__(self, prefix: str = "holdfast") -> None:
        self.schema = check_schema(prefix)
        self.prefix = f"{self.schema}_"
        # The limit is bound, not written out: SQLite plans no differently for it.
        self.statements = Statements("holdfast.stores.sqlite.statements", {"hf": self.prefix, "now": _NOW})
        self.now = _NOW
        self._compiled = lru_cache(maxsize=1024)(self._compile)

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        values = {name: encode(value) for name, value in query.values.items()}
        left = query.limit
        result: list[Row] = []
        returned: list[dict[str, object]] = []
        for step, answers in self._compiled(query.name, query.slots, style):
            bounded = left is not None and step.batch != RETURNED
            rows: list[Row] = []
            following: list[dict[str, object]] = []
            for row in self._rows(step, query.batches, returned):
                if bounded:
                    row["limit"] = left = (query.limit or 0) - len(rows)
                    if left <= 0:
                        break
                for text in step.statements:
                    names, answer = yield text, values | row
                    rows.extend(answer)
                    following.extend(dict(zip(names, one, strict=True)) for one in answer)
            returned = following
            if answers:
                result = rows
        return result

    def _rows(
        self, step: Step, batches: Mapping[str, Columns], returned: list[dict[str, object]]
    ) -> list[dict[str, object]]:
        if step.batch == ONCE:
            return [{}]
        if step.batch == RETURNED:
            return returned
        batch = batches[step.batch]
        encoded = [[encode(value) for value in column] for column in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*encoded, strict=True)]

    def _compile(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], style: Style
    ) -> tuple[tuple[Step, bool], ...]:
        """The steps in the driver's spelling, each with whether it gives rows back."""
        steps = self.statements.render(name, slots, None)
        if style is Style.PYFORMAT:
            steps = tuple(Step(step.batch, tuple(_pyformat(text) for text in step.statements)) for step in steps)
        return tuple((step, step.answers) for step in steps)


def _pyformat(text: str) -> str:
    return parameters(text.replace("%", "%%"), lambda name: f"%({name})s")


def encode(value: object) -> object:
    """A value as SQLite keeps it: times and durations as milliseconds, ids as text, lists as JSON."""
    match value:
        case None | str() | int() | float() | bytes():
            return value
        case UUID():
            return str(value)
        case datetime():
            return round(value.timestamp() * 1000)
        case timedelta():
            return round(value.total_seconds() * 1000)
        case list() | tuple():
            return orjson.dumps([encode(item) for item in value]).decode()
        case _:
            raise TypeError(f"SQLite cannot store a {type(value).__name__}")
