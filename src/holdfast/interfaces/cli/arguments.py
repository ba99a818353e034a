"""Reads JSON and headers from command line arguments."""

import sys
from typing import Any

import click
import orjson

from holdfast.core.errors import InvalidPayload


def read_json(text: str) -> Any:
    """Parses an argument as JSON, or stdin if the argument is `-`."""
    given = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        where = "stdin" if text == "-" else "the argument"
        raise InvalidPayload(
            "$", f"{where} is not JSON ({error}); quote it for the shell, such as '{{\"id\": 1}}'"
        ) from None


def read_headers(pairs: tuple[str, ...]) -> dict[str, object]:
    """Parses headers from NAME=VALUE pairs."""
    headers: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header {pair!r} does not have the form NAME=VALUE")
        headers[name] = value
    return headers
