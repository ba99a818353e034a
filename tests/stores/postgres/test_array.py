"""Array literals: what goes in is what PostgreSQL reads."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from holdfast.stores.postgres.array import array, copy_lines
from tests.servers.postgres import PostgresServer

ID = UUID("019a0000-0000-7000-8000-00000000abcd")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ["", "a", "NULL", "null", None, '"', "\\", '\\"', "{a,b}", "a,b", " a ", "ü\n\t'", "%s %(x)s", ":x"]),
        ("bigint", [0, -1, 2**63 - 1, None]),
        ("boolean", [True, False, None]),
        ("uuid", [ID, None]),
        ("timestamptz", [datetime(2026, 3, 29, 1, 59, 59, 999999, tzinfo=UTC), None]),
        ("interval", [timedelta(days=400, seconds=3, microseconds=7), timedelta(0), timedelta(seconds=-1), None]),
        ("text", []),
        ("text", ["", ""]),
        ("text", ["a", "NULL", '"', "\\", '\\"', "{a,b}", "ü\n\t'"]),
        ("bigint", [0, -1]),
        ("uuid", [ID, ID]),
    ],
)
def test_every_value_comes_back_as_it_was(postgres18: PostgresServer, kind: str, values: list[object]) -> None:
    with psycopg.connect(postgres18.dsn()) as connection:
        row = connection.execute(f"select %s::{kind}[]".encode(), (array(values),)).fetchone()
    assert row == (values,)


def test_what_no_statement_uses_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot contain dict"):
        array([{}])


def test_streamed_rows_come_back_as_they_were(postgres18: PostgresServer) -> None:
    texts = ["", "a\tb", "c\nd", "\\N", "\\", "\r", "same", "same"]
    rows = [(n, text, ID, "one value") for n, text in enumerate(texts)]
    with psycopg.connect(postgres18.dsn()) as connection:
        connection.execute("create temporary table streamed (n bigint, text text, id uuid, same text)")
        with connection.cursor().copy("copy streamed (n, text, id, same) from stdin") as copy:
            for piece in copy_lines(rows):
                copy.write(piece)
        assert connection.execute("select * from streamed order by n").fetchall() == rows


@pytest.mark.parametrize("values", [["a\0b"], ["a", "b\0c"]])
def test_a_nul_character_stays_in_its_value(values: list[str]) -> None:
    assert array(values).count("\0") == 1
    assert "".join(copy_lines([(value,) for value in values])).count("\0") == 1
