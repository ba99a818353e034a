"""What is kept of an answer, how it is given again, and the answers that the gate gives by itself."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import orjson

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import encode
from holdfast.stores.integrations.idempotency import Headers, StoredResponse

REPLAYED = ("idempotent-replayed", "true")

# A cookie belongs to one client's session. The others speak of one connection or one moment, or follow from the body.
_NOT_KEPT = frozenset(
    {
        *("connection", "content-length", "date", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "server", "set-cookie", "set-cookie2", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_OF_THE_BODY = frozenset({"content-length", "content-type", "transfer-encoding", "etag", "content-encoding"})
_EMPTY = frozenset({204, 304})


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers of an answer that may be given again."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in pairs if name == "connection" for token in value.split(",")}
    return tuple((name, value) for name, value in pairs if name not in _NOT_KEPT and name not in named)


def with_length(response: StoredResponse, *more: tuple[str, str]) -> StoredResponse:
    """An answer as it goes out: with its length, and further headers."""
    body = response.body or b""
    length = () if response.status in _EMPTY and not body else (("content-length", str(len(body))),)
    return StoredResponse(response.status, (*response.headers, *more, *length), body)


def in_place_of(headers: Iterable[tuple[str, str]], stored: StoredResponse) -> Headers:
    """The headers of the application's own answer, around the body that was stored for it."""
    own = tuple((name, value) for name, value in headers if name.lower() not in _OF_THE_BODY)
    of_the_body = tuple(pair for pair in with_length(stored).headers if pair[0] in _OF_THE_BODY)
    return (*own, *of_the_body)


def problem(status: int, code: str, title: str, detail: str, *, retry_after: int | None = None) -> StoredResponse:
    """An answer that says what is wrong, as RFC 9457 wants it; `code` is for programs."""
    body = {"type": f"urn:holdfast:{code}", "title": title, "status": status, "detail": detail, "code": code}
    headers: Headers = (("content-type", "application/problem+json"), ("cache-control", "no-store"))
    if retry_after is not None:
        headers += (("retry-after", str(retry_after)),)
    return with_length(StoredResponse(status, headers, orjson.dumps(body)))


def stored_response(response: object, status: int | None, limit: int) -> StoredResponse:
    """What a handler hands in, as it will be kept and sent.

    A response of Starlette, Flask or Django is taken as it is; text and bytes too; all else is written as JSON.
    """
    body, given, headers = _parts(response)
    chosen = status if status is not None else given
    HTTPStatus(chosen)  # a number that is no status fails here, before anything is written
    if len(body) > limit:
        raise ConfigurationError(
            f"the response has {len(body):,} bytes, over the limit of {limit:,}; answer with a reference to it, or "
            "raise max_response"
        )
    return StoredResponse(chosen, kept_headers(headers), body)


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
        f"a {type(response).__name__} is sent piece by piece and cannot be kept whole; complete with the data itself"
    )
