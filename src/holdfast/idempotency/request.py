"""The identity of a request: its scope, its key and a hash of its content."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from holdfast.core.errors import InvalidKey
from holdfast.core.key import check_key

MAX_KEY = 255
MAX_SCOPE = 255
# A structured field string may carry parameters; the standard defines none for this header, so they are ignored.
_PARAMETERS = re.compile(r'(?<=")(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:"[^"\\]*"|[^";\s]+))?)+$')


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the scope function sees it. Header names are in lower case.

    `raw` is the ASGI scope or the WSGI environ of the server.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    raw: Mapping[str, Any]


def read_key(given: Sequence[str]) -> str | None:
    """The key in the values of its header; None without one. Raises `InvalidKey`.

    The quoted form of the standard and the bare form of most clients are the same key.

    Examples:
        >>> read_key(['"8e03978e"']) == read_key(["8e03978e"]) == read_key(['"8e03978e";v=1'])
        True
    """
    if not given:
        return None
    if len(given) > 1:
        raise InvalidKey(", ".join(given), "the header was sent more than once; send one key")
    value = given[0].strip()
    key = _unquoted(_PARAMETERS.sub("", value)) if value.startswith('"') else value
    if not 1 <= len(key) <= MAX_KEY:
        raise InvalidKey(key, f"it has {len(key)} characters; use 1 to {MAX_KEY}")
    if any(not " " <= character <= "~" for character in key):
        raise InvalidKey(key, "it has characters that are not printable ASCII; use a UUID, for example")
    if key is value and any(character in ' ,;"\\' for character in key):
        raise InvalidKey(key, "put a key with spaces, commas, semicolons, quotes or backslashes in double quotes")
    return key


def _unquoted(value: str) -> str:
    text, escaped = [], False
    for character in value[1:-1]:
        if escaped and character not in '"\\':
            break
        if not escaped and character == '"':
            break
        escaped = not escaped and character == "\\"
        if not escaped:
            text.append(character)
    else:
        if len(value) > 1 and value.endswith('"') and not escaped:
            return "".join(text)
    raise InvalidKey(value, "it begins with a quote and is not a quoted string; quote all of it or none of it")


def check_scope(value: object) -> str:
    """The owner of the key as text. Raises `InvalidKey` if the scope function returned none."""
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(
            value,
            f"scope(request) returned {'None' if value is None else f'a {type(value).__name__}'}, which names no user or tenant; "
            "sign in and send the request again, or let scope return text, a number or a UUID for it",
        )
    text = check_key(str(value))
    if len(text) > MAX_SCOPE:
        raise InvalidKey(text, f"the scope has {len(text)} characters; use 1 to {MAX_SCOPE}, or a hash")
    return text


def request_hash(method: str, path: str, query: str, content_type: str, body: bytes) -> str:
    """A hash of the request. JSON bodies are compared by value, so spaces and the order of keys do not matter; others by bytes.

    Examples:
        >>> a = request_hash("POST", "/orders", "", "application/json", b'{"a": 1, "b": 2}')
        >>> a == request_hash("POST", "/orders", "", "application/json; charset=utf-8", b'{"b":2,"a":1}')
        True
    """
    digest = hashlib.sha256()
    for part in (method.encode(), path.encode(errors="surrogateescape"), query.encode(errors="surrogateescape")):
        # With the length of each part, two different requests never give the same input.
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(_normalised(content_type, body))
    return digest.hexdigest()


def _normalised(content_type: str, body: bytes) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            # Python's parser keeps integers of any size exact. NaN is not JSON.
            value = json.loads(body, object_pairs_hook=_members, parse_float=_number)
            return b"json" + json.dumps(value, sort_keys=True, allow_nan=False).encode()
        except (ValueError, ArithmeticError, RecursionError):
            pass  # not JSON, or parsers may differ about its value
    return b"bytes" + body


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has the same name twice")
    return members


def _number(text: str) -> float:
    number = float(text)
    # An application that parses decimals sees more digits than a float has.
    if Decimal(text) != Decimal(repr(number)):
        raise ValueError("not exact as a float")
    return number
