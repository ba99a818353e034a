"""JSON and headers given on the command line."""

import sys
from typing import Any

import click
import orjson

from holdfast.core.errors import InvalidPayload


def read_json(text: str) -> Any:
    """The JSON value in an argument, or on stdin when the argument is `-`."""
    given = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        where = "stdin" if text == "-" else "the argument"
        raise InvalidPayload(
            "$", f"{where} is not JSON ({error}); quote it for the shell, such as '{{\"id\": 1}}'"
        ) from None


def read_headers(pairs: tuple[str, ...]) -> dict[str, object]:
    """Headers from NAME=VALUE."""
    headers: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header {pair!r} is not NAME=VALUE")
        headers[name] = value
    return headers
