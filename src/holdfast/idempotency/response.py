"""What is stored of a response, how it is replayed, and the problem responses of the engine."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import orjson

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import encode
from holdfast.stores.integrations.idempotency import Headers, StoredResponse

REPLAYED = ("idempotent-replayed", "true")

# A cookie belongs to one client's session. The others concern one connection or one moment, or follow from the body.
_NOT_STORED = frozenset(
    {
        *("connection", "content-length", "date", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "server", "set-cookie", "set-cookie2", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_BODY_HEADERS = frozenset({"content-length", "content-type", "transfer-encoding", "etag", "content-encoding"})
_EMPTY = frozenset({204, 304})


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers of a response that may be replayed."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in pairs if name == "connection" for token in value.split(",")}
    return tuple((name, value) for name, value in pairs if name not in _NOT_STORED and name not in named)


def with_length(response: StoredResponse, *more: tuple[str, str]) -> StoredResponse:
    """The response to send: with its content length and further headers."""
    body = response.body or b""
    length = () if response.status in _EMPTY and not body else (("content-length", str(len(body))),)
    return StoredResponse(response.status, (*response.headers, *more, *length), body)


def merge_headers(headers: Iterable[tuple[str, str]], stored: StoredResponse) -> Headers:
    """The headers of the application's response, with those that describe the stored body."""
    own = tuple((name, value) for name, value in headers if name.lower() not in _BODY_HEADERS)
    body_headers = tuple(pair for pair in with_length(stored).headers if pair[0] in _BODY_HEADERS)
    return (*own, *body_headers)


def problem(status: int, code: str, title: str, detail: str, *, retry_after: int | None = None) -> StoredResponse:
    """A problem response (RFC 9457); `code` is for programs."""
    body = {"type": f"urn:holdfast:{code}", "title": title, "status": status, "detail": detail, "code": code}
    headers: Headers = (("content-type", "application/problem+json"), ("cache-control", "no-store"))
    if retry_after is not None:
        headers += (("retry-after", str(retry_after)),)
    return with_length(StoredResponse(status, headers, orjson.dumps(body)))


def stored_response(response: object, status: int | None, limit: int) -> StoredResponse:
    """The value that a handler completes with, as it is stored and sent.

    Responses of Starlette, Flask or Django, text and bytes are stored unchanged; any other value is encoded as JSON.
    """
    body, given, headers = _parts(response)
    code = status if status is not None else given
    HTTPStatus(code)  # raises for an invalid status before anything is written
    if len(body) > limit:
        raise ConfigurationError(
            f"the response has {len(body):,} bytes, over the limit of {limit:,}; respond with a reference to it, or "
            "raise max_response"
        )
    return StoredResponse(code, kept_headers(headers), body)


def _parts(response: Any) -> tuple[bytes, int, Iterable[tuple[str, str]]]:
    if isinstance(response, bytes):
        return response, 200, [("content-type", "application/octet-stream")]
    if isinstance(response, str):
        return response.encode(), 200, [("content-type", "text/plain; charset=utf-8")]
    if response is None:
        return b"", 204, []
    if hasattr(response, "status_code") and hasattr(response, "headers"):
        return _body(response), response.status_code, list(response.headers.items())
    json = [("content-type", "application/json")]
    if hasattr(response, "model_dump_json"):
        return response.model_dump_json(by_alias=True).encode(), 200, json
    return encode(response, max_bytes=2**62).encode(), 200, json


def _body(response: Any) -> bytes:
    for name in ("get_data", "content", "body"):  # Flask, Django, Starlette
        if (value := getattr(response, name, None)) is not None:
            return bytes(value() if callable(value) else value)
    raise ConfigurationError(
        f"a {type(response).__name__} is streamed and cannot be stored; pass the data to complete() instead"
    )
