"""The SQLite dialect: the steps of a query run one after another, batches row by row."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID

import orjson

from holdfast.core.values.names import check_schema
from holdfast.stores.dialect import Answer, Parameters, Stream, Style
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.operation import Columns, Query, Row, Rows
from holdfast.stores.statement import ONCE, RETURNED, Statements, StatementStep, parameters

# Milliseconds. julianday() is more precise than that, and 'now' is constant within a statement.
_NOW = "cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer)"


class SqliteDialect:
    """Statements with a table prefix instead of a schema."""

    name = "sqlite"
    streams = False

    def __init__(self, prefix: str = "holdfast") -> None:
        self.schema = check_schema(prefix)
        self.prefix = f"{self.schema}_"
        # The limit is a bound parameter: it does not change SQLite's query plan.
        self.statements = Statements("holdfast.stores.sqlite.statements", {"hf": self.prefix, "now": _NOW})
        self.now = _NOW
        self.encryption: Encryption | None = None
        self._compiled = lru_cache(maxsize=1024)(self._compile)

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        if query.rows is not None:
            ((step, _),) = self._compiled(query.name, query.slots, style)
            (text,) = step.statements
            yield text, Stream(tuple(map(encode, row)) for row in query.rows)
            return ()
        values = {name: v if type(v) in _UNCHANGED else encode(v) for name, v in query.values.items()}
        result: Rows = ()
        returned: tuple[Sequence[str], Rows] = (), ()
        # The rows that several steps of a statement take are written as JSON once.
        taken: tuple[Rows, str] | None = None
        for step, answers in self._compiled(query.name, query.slots, style):
            if step.all:
                if taken is None or step.batch != RETURNED or returned[1] is not taken[0]:
                    rows = _rows(step, query.batches, returned)
                    taken = rows, _json(rows)
                answer = yield step.statements[0], {**values, "rows": taken[1]}
            elif step.batch == ONCE and query.limit is None and len(step.statements) == 1:
                answer = yield step.statements[0], values
            else:
                names, rows = self._batch(step, query.batches, returned)
                if query.limit is not None and step.batch != RETURNED:
                    answer = yield from _up_to(query.limit, step, values, names, rows)
                else:
                    answer = yield from _each(step, values, names, rows)
            if answers:
                returned, result = answer, answer[1]
        return result

    def _batch(self, step: StatementStep, batches: Mapping[str, Columns], returned: Answer) -> Answer:
        """The column names and rows for a step; a step that runs once has one row without columns."""
        if step.batch == ONCE:
            return (), [()]
        if step.batch == RETURNED:
            return returned
        batch = batches[step.batch]
        return list(batch), list(
            zip(
                *[[v if type(v) in _UNCHANGED else encode(v) for v in column] for column in batch.values()], strict=True
            )
        )

    def _compile(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], style: Style
    ) -> tuple[tuple[StatementStep, bool], ...]:
        """The steps in the driver's parameter style, each with whether it returns rows."""
        steps = self.statements.render(name, slots, None)
        if style is Style.PYFORMAT:
            steps = tuple(replace(step, statements=tuple(map(_pyformat, step.statements))) for step in steps)
        return tuple((step, step.answers) for step in steps)


def _pyformat(text: str) -> str:
    return parameters(text.replace("%", "%%"), lambda name: f"%({name})s")


Running = Generator[tuple[str, Parameters], Answer, Answer]


def _each(step: StatementStep, values: Mapping[str, object], names: Sequence[str], rows: Rows) -> Running:
    given: Sequence[str] = ()
    found: list[Row] = []
    for row in rows:
        for text in step.statements:
            given, answer = yield text, {**values, **dict(zip(names, row, strict=True))}
            found.extend(answer)
    return given, found


def _up_to(limit: int, step: StatementStep, values: Mapping[str, object], names: Sequence[str], rows: Rows) -> Running:
    """Runs a step row by row until there are `limit` results; each run gets the remaining limit."""
    given: Sequence[str] = ()
    found: list[Row] = []
    for row in rows:
        if len(found) >= limit:
            break
        given, answer = yield from _each(step, {**values, "limit": limit - len(found)}, names, [row])
        found.extend(answer)
    return given, found


def _rows(step: StatementStep, batches: Mapping[str, Columns], returned: Answer) -> Rows:
    """The rows for a step that runs once with all of them."""
    return returned[1] if step.batch == RETURNED else list(zip(*batches[step.batch].values(), strict=True))


def _json(rows: Rows) -> str:
    """The rows for a step that runs once with all of them. A row with one column becomes a value, another row a list."""
    flat = [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows
    return orjson.dumps(flat, encode, orjson.OPT_PASSTHROUGH_DATETIME).decode()


_UNCHANGED = frozenset({type(None), str, int, float, bytes, bool})


def encode(value: object) -> object:
    """A value as SQLite stores it: times and durations as milliseconds, ids as text, lists as JSON."""
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind is UUID:
        return str(value)
    match value:
        case None | str() | int() | float() | bytes():
            return value
        case datetime():
            return round(value.timestamp() * 1000)
        case timedelta():
            return round(value.total_seconds() * 1000)
        case list() | tuple():
            return orjson.dumps([encode(item) for item in value]).decode()
        case _:
            raise TypeError(f"SQLite cannot store a {type(value).__name__}")
