"""The PostgreSQL dialect: one statement per query, batches as arrays."""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from holdfast.core.values.names import check_schema
from holdfast.stores.dialect import Answer, LockedCall, Parameters, Stream, Style
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.operation import Query, Rows
from holdfast.stores.postgres.array import array, copy_lines, literal
from holdfast.stores.statement import Statements, parameters

# An array that every driver passes as text, so that it is written by column.
_LITERAL = re.compile(r"(?<![:\w]):([a-z_]\w*)::text::\w+\[\]")
_TYPED = re.compile(r"(?<![:\w]):([a-z_]\w*)::(\w+(?:\[\])?)")


class PostgresDialect:
    """Statements qualified by their schema: no session setting is needed, so any connection and any pooler works."""

    name = "postgres"
    streams = True

    def __init__(self, schema: str = "holdfast") -> None:
        self.schema = check_schema(schema)
        self.prefix = f'"{self.schema}".'
        self.statements = Statements(
            "holdfast.stores.postgres.statements", {"hf": self.prefix, "schema": f'"{self.schema}"'}
        )
        self.encryption: Encryption | None = None
        self._compiled = lru_cache(maxsize=1024)(self._compile)
        self._callable = lru_cache(maxsize=1024)(self._call)

    def expand(self, query: Query, style: Style) -> Generator[tuple[str, Parameters], Answer, Rows]:
        text, names = self._compiled(query.name, query.slots, query.limit, style)
        if query.rows is not None:
            yield text, Stream(copy_lines(query.rows))
            return ()
        if query.locks:
            _, rows = yield self._locked(query)
            return rows
        values = dict(query.values)
        for batch in query.batches.values():
            values.update(batch)
        if style is Style.NUMERIC:
            _, rows = yield text, [convert(values[name]) if convert else values[name] for name, convert in names]
        else:
            written = {name: array(v) if isinstance(v, list | tuple) else v for name, v in values.items()}
            _, rows = yield text, written
        return rows

    def _locked(self, query: Query) -> tuple[str, LockedCall]:
        name, text, names, types = self._callable(query.name, query.slots, query.limit)
        values = {**query.values, **{name: value for batch in query.batches.values() for name, value in batch.items()}}
        arguments = tuple(literal(values[name]) for name in names)
        return text, LockedCall(name, types, arguments, tuple(self._lock(lock) for lock in query.locks))

    def _lock(self, name: str) -> int:
        """The key of an advisory lock: the schema is part of it, because two apps may share a database."""
        digest = blake2b(f"holdfast.{self.schema}.{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _call(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], limit: int | None
    ) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
        """A statement with `$1` parameters: a name for PREPARE, its text, the parameters and their types."""
        (step,) = self.statements.render(name, slots, limit)
        (text,) = step.statements
        types: dict[str, str] = {}
        for parameter, type in _TYPED.findall(text):
            types.setdefault(parameter, type)
        numbers = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        text = parameters(text, lambda parameter: numbers[parameter])
        digest = blake2b(text.encode(), digest_size=8).hexdigest()
        return f"holdfast_{digest}", text, tuple(types), tuple(types.values())

    def _compile(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], limit: int | None, style: Style
    ) -> tuple[str, tuple[tuple[str, Callable[[Any], str] | None], ...]]:
        """The text in the driver's style; for numbered parameters also their names, and how they are converted."""
        (step,) = self.statements.render(name, slots, limit)
        (text,) = step.statements
        names: list[str] = []

        def number(parameter: str) -> str:
            if parameter not in names:
                names.append(parameter)
            return f"${names.index(parameter) + 1}"

        if style is Style.NUMERIC:
            literals = set(_LITERAL.findall(text))
            text = parameters(text, number)
            return text, tuple((name, array if name in literals else None) for name in names)
        return parameters(text.replace("%", "%%"), lambda parameter: f"%({parameter})s"), ()
