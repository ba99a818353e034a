"""The PostgreSQL dialect: one statement per query, batches as arrays."""

from collections.abc import Generator
from functools import lru_cache

from holdfast.core.names import check_schema
from holdfast.stores.dialect import Answer, Parameters, Stream, Style
from holdfast.stores.operation import Query, Rows
from holdfast.stores.postgres.array import array, copy_lines
from holdfast.stores.statement import Statements, parameters


class PostgresDialect:
    """Statements qualified by their schema: no session setting is needed, so any connection or pooler will do."""

    name = "postgres"

    def __init__(self, schema: str = "holdfast") -> None:
        self.schema = check_schema(schema)
        self.prefix = f'"{self.schema}".'
        self.statements = Statements(
            "holdfast.stores.postgres.statements", {"hf": self.prefix, "schema": f'"{self.schema}"'}
        )
        self._compiled = lru_cache(maxsize=1024)(self._compile)

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        text, names = self._compiled(query.name, query.slots, query.limit, style)
        if query.rows is not None:
            yield text, Stream(copy_lines(query.rows))
            return ()
        values = dict(query.values)
        for batch in query.batches.values():
            values.update(batch)
        if style is Style.NUMERIC:
            _, rows = yield text, [values[name] for name in names]
        else:
            written = {name: array(v) if isinstance(v, list | tuple) else v for name, v in values.items()}
            _, rows = yield text, written
        return rows

    def _compile(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], limit: int | None, style: Style
    ) -> tuple[str, tuple[str, ...]]:
        (step,) = self.statements.render(name, slots, limit)
        (text,) = step.statements
        names: list[str] = []

        def number(parameter: str) -> str:
            if parameter not in names:
                names.append(parameter)
            return f"${names.index(parameter) + 1}"

        if style is Style.NUMERIC:
            return parameters(text, number), tuple(names)
        return parameters(text.replace("%", "%%"), lambda parameter: f"%({parameter})s"), ()
