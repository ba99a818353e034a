"""The response of a service: its body with a limit, and its value as a type."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from holdfast.core.errors import InvalidPayload
from holdfast.core.failures.http import CONFLICT

ENCODINGS = ("gzip", "deflate")


@dataclass(frozen=True, slots=True)
class Response:
    """A successful response, or a 409 with `conflict_ok`. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def parse(self, returns: Any) -> Any:
        """Parses the JSON body as this type. Raises pydantic's ValidationError if it does not fit."""
        adapter = _adapter(returns)
        return adapter.validate_json(self.body) if self.body else adapter.validate_python(None)


class ResponseBody:
    """Collects a response body up to the limit."""

    def __init__(self, service: str, method: str, max_bytes: int, headers: Mapping[str, str]) -> None:
        self._service, self._method, self._max_bytes, self._size = service, method, max_bytes, 0
        self._chunks: list[bytes] = []
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", *ENCODINGS):
            # A small chunk in another encoding, or in several, can expand to gigabytes before its size is checked.
            raise InvalidPayload(
                "$",
                f"{service} answered {method} in an encoding that was not requested, {encoding[:50]!r}; "
                "correct the service",
            )

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise InvalidPayload(
                "$", f"{self._service} answered {self._method} with over {self._max_bytes:,} bytes; raise max_response"
            )
        self._chunks.append(chunk)

    @property
    def content(self) -> bytes:
        return b"".join(self._chunks)


def parsed(answer: Response, returns: Any) -> Any:
    """Returns the parsed value, or the response if no type was given. None for a 409, whose body has another shape."""
    if returns is None:
        return answer
    return None if answer.status == CONFLICT else answer.parse(returns)


def _adapter(returns: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(returns)
    except TypeError:  # not hashable, such as Annotated with a dict inside
        return TypeAdapter(returns)


@lru_cache(maxsize=512)
def _cached_adapter(returns: Any) -> TypeAdapter[Any]:
    return TypeAdapter(returns)
