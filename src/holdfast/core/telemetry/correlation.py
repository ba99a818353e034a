"""Correlation ids: what ties one user action together, from the route through message and handler to the log."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token

from holdfast.core.events.event import VERSION_HEADER
from holdfast.core.events.payload import check_headers
from holdfast.core.message import SOURCE_MESSAGE_ID

# About one message; events that its handler publishes are other messages.
_OF_ONE_MESSAGE = frozenset({VERSION_HEADER, SOURCE_MESSAGE_ID})
_current: ContextVar[Mapping[str, str]] = ContextVar("holdfast_correlation", default={})  # noqa: B039


@contextmanager
def correlate(**ids: object) -> Iterator[None]:
    """Every message published and every line logged inside carries these ids; nested ones add to them.

    A message's headers may be given as they are: those about the message alone, such as its version, are left out.

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
    """Puts the ids of a stored message in force, until `leave`: they were checked when it was published."""
    return _current.set({**_current.get(), **{name: id for name, id in headers.items() if name not in _OF_ONE_MESSAGE}})


def leave(token: Token[Mapping[str, str]]) -> None:
    """Puts what was in force before `resume` back."""
    _current.reset(token)


def correlation() -> Mapping[str, str]:
    """The ids in force here."""
    return _current.get()
