"""Payloads as JSON text without loss; a value that JSON cannot represent is refused with its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from holdfast.core.encryption import ENCRYPTED_START, encrypted_value, read_encrypted, unreadable
from holdfast.core.errors import InvalidPayload, PayloadTooLarge
from holdfast.core.events.payload_errors import OPTIONS, find_flaw, holds_nan, plain, step
from holdfast.core.values.text import safe_str, storable, type_name

MAX_BYTES = 1_048_576
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16_384
REQUEST_ID = "request_id"
MAX_REQUEST_ID_BYTES = 1_000
"""PostgreSQL indexes this header, and refuses an index entry of more than about 2,700 bytes."""


def encode(payload: object, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the JSON text of `payload` with sorted keys, or raise `InvalidPayload` with the path of the invalid value.

    Accepts nested dicts, lists, scalars, dataclasses, TypedDicts, named tuples and pydantic models. Datetimes, UUIDs
    and Decimals become strings, enums their value. Values that JSON cannot represent or a database cannot store (NaN,
    infinity, NUL, lone surrogates, integers over 64 bits) are refused.

    >>> encode({"b": 1, "a": [True, None]})
    '{"a":[true,null],"b":1}'
    """
    try:
        written = orjson.dumps(payload, default=plain, option=OPTIONS)
    except TypeError as exc:
        cause = exc.__cause__ or exc
        path, problem = find_flaw(payload) or ("$", f"cannot be written as JSON: {safe_str(cause)[:200]}")
        raise InvalidPayload(path, problem) from None
    if len(written) > max_bytes:
        raise PayloadTooLarge(len(written), max_bytes)
    # orjson writes NaN as null and NUL as an escape that PostgreSQL refuses. Both are easy to find in the output, so the
    # payload is searched only if the output contains one of them.
    if b"\\u0000" in written or (b"null" in written and holds_nan(payload)):
        found = find_flaw(payload)
        if found:
            raise InvalidPayload(*found)
    text = written.decode()
    if encrypted_value(text) is not None:
        raise InvalidPayload(
            "$", "has the form of an encrypted value, with $encrypted as its only member; add another member"
        )
    return text


def encode_many(payloads: Sequence[object], mark: str, *, max_bytes: int = MAX_BYTES) -> list[str]:
    """Return what `encode` returns for each payload, or raise the error of the first invalid one.

    All of them are written at once, which takes a third of the time. `mark` is a random text that is written between
    them, so no payload may contain it: draw a new one for each call.

    >>> encode_many([{"b": 1}, "a"], "f81d4fae")
    ['{"b":1}', '"a"']
    """
    marked: list[object] = [mark] * (2 * len(payloads) - 1)
    marked[::2] = payloads
    try:
        written = orjson.dumps(marked, default=plain, option=OPTIONS)
    except TypeError:
        # One by one, to find the invalid payload. One of them may also be as deep as is allowed.
        return [encode(payload, max_bytes=max_bytes) for payload in payloads]
    text = written.decode()
    texts = text[1:-1].split(f',"{mark}",')
    if (
        "\\u0000" in text
        or ENCRYPTED_START in text
        or (len(written) > max_bytes and any(len(one.encode()) > max_bytes for one in texts))
        or ("null" in text and any(map(holds_nan, payloads)))
    ):
        return [encode(payload, max_bytes=max_bytes) for payload in payloads]
    return texts


def decode(text: str | bytes) -> object:
    """Return the value of JSON `text`, or raise `InvalidPayload`; never raises the decoder's error.

    A value that is still encrypted raises `EncryptionKeyMissing` or `DecryptionFailed`.
    """
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidPayload("$", json_problem(text, exc)) from None
    if type(value) is dict and len(value) == 1 and (found := read_encrypted(value)) is not None:
        raise unreadable(found)
    return value


def json_problem(text: str | bytes, error: ValueError) -> str:
    """Why `text` is not JSON. The decoder reports bytes that are not UTF-8 as surrogates, without their position."""
    try:
        if isinstance(text, bytes):
            text.decode()
    except UnicodeDecodeError as wrong:
        return utf8_problem(wrong)
    return f"is not JSON: {error}"


def utf8_problem(wrong: UnicodeDecodeError) -> str:
    """Which byte is not UTF-8, and what to do."""
    return f"is not UTF-8: byte 0x{wrong.object[wrong.start]:02x} at position {wrong.start}; the sender must encode text as UTF-8"


def same(a: str | bytes, b: str | bytes) -> bool:
    """Whether two JSON texts have the same value; the order of keys and the format of numbers do not matter.

    >>> same('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}')
    True
    """
    if a == b:
        return True
    pairs = [(decode(a), decode(b))]
    while pairs:
        x, y = pairs.pop()
        if isinstance(x, dict) and isinstance(y, dict):
            if x.keys() != y.keys():
                return False
            pairs.extend((x[key], y[key]) for key in x)
        elif isinstance(x, list) and isinstance(y, list):
            if len(x) != len(y):
                return False
            pairs.extend(zip(x, y, strict=True))
        # In Python 1 equals True, in JSON it does not.
        elif isinstance(x, bool) is not isinstance(y, bool) or x != y:
            return False
    return True


def indexable(name: str, value: str) -> bool:
    """Whether a header that both databases index is short enough for an index entry."""
    return name != REQUEST_ID or len(value.encode()) <= MAX_REQUEST_ID_BYTES


def check_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """Return `headers` as a bounded dict of text to text, or raise `InvalidPayload` with the header."""
    if not isinstance(headers, Mapping):
        raise InvalidPayload("headers", f"is of type {type_name(type(headers))}; give a dict of text to text")
    if len(headers) > MAX_HEADERS:
        raise InvalidPayload("headers", f"{len(headers)} headers, over the limit of {MAX_HEADERS}; leave some out")
    checked: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        path = f"headers{step(name)}"
        if not isinstance(name, str) or not name or not storable(name):
            raise InvalidPayload(path, "a header's name must be non-empty text without NUL or lone surrogates")
        if not isinstance(value, str):
            remedy = "leave the header out" if value is None else "make it text with str() first"
            raise InvalidPayload(path, f"is of type {type_name(type(value))}; {remedy}")
        if not storable(value):
            raise InvalidPayload(path, "contains a NUL character or a lone surrogate; remove it")
        if not indexable(name, value):
            problem = f"{len(value.encode()):,} bytes, over the limit of {MAX_REQUEST_ID_BYTES:,} for this header"
            raise InvalidPayload(path, f"{problem}; use a shorter id, or a hash of it")
        checked[str(name)] = str(value)
        size += len(name.encode()) + len(value.encode())
    if size > MAX_HEADER_BYTES:
        problem = f"{size:,} bytes in all, over the limit of {MAX_HEADER_BYTES:,}; shorten them, or leave some out"
        raise InvalidPayload("headers", problem)
    return checked
