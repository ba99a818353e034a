"""Runs small, frequent statements through libpq: for these, a cursor of psycopg takes longer than the server."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from holdfast.stores.connections.locked_call import note_prepared
from holdfast.stores.dialect import Answer, Parameters, Style
from holdfast.stores.postgres.array import parameter

_DONE = ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK
_BINARY = Format.BINARY


class PreparedPsycopg:
    """A connection of the store whose session keeps its statements prepared. No other call uses it at the same time."""

    database = "postgres"
    awaits: Literal[True] = True
    style = Style.NUMERIC

    def __init__(self, conn: Any, prepared: set[str]) -> None:
        self._conn, self._prepared = conn, prepared
        self.physical = conn

    async def check(self) -> None:
        """Does nothing: it is not a caller's connection."""

    async def begin(self) -> None:
        """Does nothing: a statement alone is a transaction."""

    async def run(self, text: str, values: Parameters) -> Answer:
        assert isinstance(values, list)
        name = _name(text)
        arguments = list(map(parameter, values))
        if b"\0" in b"".join(filter(None, arguments)):
            # libpq would end the value there.
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        try:
            if name not in self._prepared:
                await self._conn.wait(self._prepare(name, text))
                self._prepared.add(name)
            result = await self._conn.wait(self._execute(name, arguments), None)
        except psycopg.Error as error:
            note_prepared(self._prepared, name, error)
            raise
        rows = Transformer(self._conn)
        rows.set_pgresult(result)
        return (), rows.load_rows(0, result.ntuples, tuple)

    def _prepare(self, name: str, text: str) -> Any:
        self._conn.pgconn.send_prepare(name.encode(), text.encode())
        return _result((yield from generators.execute(self._conn.pgconn)))

    def _execute(self, name: str, arguments: Sequence[bytes | None]) -> Any:
        # It is sent here, not by the caller: the first step of an exchange is part of the wait for it.
        self._conn.pgconn.send_query_prepared(name.encode(), arguments, result_format=_BINARY)
        return _result((yield from generators.execute(self._conn.pgconn)))


def _result(results: Sequence[Any]) -> Any:
    for result in results:
        if result.status not in _DONE:
            raise psycopg.errors.error_from_result(result)
    return results[0]


@lru_cache(maxsize=256)
def _name(text: str) -> str:
    return f"holdfast_{blake2b(text.encode(), digest_size=8).hexdigest()}"
