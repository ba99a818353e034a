"""Correlation ids: they connect a request with its messages, handlers and log lines."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token

from holdfast.core.events.event import VERSION_HEADER
from holdfast.core.events.payload import check_headers
from holdfast.core.group import GROUP_HEADER
from holdfast.core.message import PROVENANCE

# These headers describe one message; events that its handler publishes are other messages.
_OF_ONE_MESSAGE = PROVENANCE | {VERSION_HEADER, GROUP_HEADER}
_current: ContextVar[Mapping[str, str]] = ContextVar("holdfast_correlation", default={})  # noqa: B039


@contextmanager
def correlate(**ids: object) -> Iterator[None]:
    """Adds these ids to each message published and each line logged inside; nested blocks add more ids.

    The headers of a message can be passed directly: those about the message itself, such as its version, are ignored.

    Examples:
        >>> with correlate(request_id="r-1"):
        ...     correlation()["request_id"]
        'r-1'
    """
    given = check_headers(
        {name: str(value) for name, value in ids.items() if value is not None and name not in _OF_ONE_MESSAGE}
    )
    token = _current.set({**_current.get(), **given})
    try:
        yield
    finally:
        _current.reset(token)


def resume(headers: Mapping[str, str]) -> Token[Mapping[str, str]]:
    """Makes the ids of a stored message current, until `leave`; they were checked when it was published."""
    return _current.set({**_current.get(), **{name: id for name, id in headers.items() if name not in _OF_ONE_MESSAGE}})


def leave(token: Token[Mapping[str, str]]) -> None:
    """Restores the ids that were current before `resume`."""
    _current.reset(token)


def correlation() -> Mapping[str, str]:
    """The current ids."""
    return _current.get()
