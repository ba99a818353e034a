"""The address of a PostgreSQL server."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import ConfigurationError


def read_dsn(dsn: str) -> dict[str, Any]:
    """The parts of a DSN; an error does not contain the address."""
    try:
        given: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        given = {"host": "@@"}
    # The driver's message contains the DSN, and an unencoded @ in a password makes the rest of it a host.
    if "@" in str(given.get("host") or "")[1:]:
        raise ConfigurationError(
            "the DSN cannot be parsed; write it like postgresql://user@host:port/database and percent-encode special "
            "characters in the password (the DSN is not shown because it may contain a password)"
        )
    return given


def shown_dsn(given: dict[str, Any]) -> str:
    """The address without its user, password and options."""
    host = given.get("host") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{host}{port}/{given.get('dbname') or ''}"
