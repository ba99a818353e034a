"""Built-in verdicts for signals, HTTP responses and common exceptions.

Exceptions of drivers and pydantic are recognized by class name, so that nothing is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from json import JSONDecodeError

from holdfast.core.errors import (
    AddressRefused,
    CircuitOpen,
    ConfigurationError,
    DecryptionFailed,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    JobFailed,
    KeyConflict,
    NoTransaction,
    Outage,
    RetryAfter,
    TerminalError,
    UnsupportedConnection,
    WorkflowFailed,
)
from holdfast.core.failures.exception_info import carried_retry_after, carried_status
from holdfast.core.failures.http import verdict_for
from holdfast.core.failures.verdict import Verdict

_DEAD, _RETRY = Verdict.dead(), Verdict.retry()

_BY_CLASS: Mapping[type, Verdict] = {
    # Only different code or a different payload can help.
    AddressRefused: _DEAD,
    ConfigurationError: _DEAD,
    DecryptionFailed: _DEAD,
    InvalidKey: _DEAD,
    InvalidName: _DEAD,
    InvalidPayload: _DEAD,
    JobFailed: _DEAD,
    JSONDecodeError: _DEAD,  # also the subclasses in orjson and requests
    KeyConflict: _DEAD,
    NoTransaction: _DEAD,
    UnsupportedConnection: _DEAD,
    WorkflowFailed: _DEAD,
    OSError: _RETRY,  # also its subclasses ConnectionError and TimeoutError
}

# All DB-API 2.0 drivers use these names; SQLAlchemy and Django wrap the errors under the same names.
_BY_NAME: Mapping[str, Verdict] = {
    "IntegrityError": _DEAD,
    "IntegrityConstraintViolationError": _DEAD,
    "OperationalError": _RETRY,
    "InterfaceError": _RETRY,
}

_PYDANTIC = frozenset({"pydantic", "pydantic_core"})
_WRAPPERS = 3


def builtin_verdict(exc: BaseException, now: datetime | None) -> Verdict:
    """Return the built-in verdict on one exception; unknown exceptions are retried."""
    if isinstance(exc, TerminalError):
        return _DEAD
    if isinstance(exc, RetryAfter):
        return Verdict.retry(exc.delay)
    if isinstance(exc, Outage):
        return Verdict.block(exc.resource)
    if isinstance(exc, CircuitOpen):
        return Verdict.park(exc.name, exc.until)
    status = carried_status(exc)
    if status is not None:
        # An exception with a success status (such as an unreadable body) is still a failure.
        answer = verdict_for(status, *carried_retry_after(exc, now))
        if answer is not None:
            return answer
    return _known(exc) or _RETRY


def _known(exc: BaseException) -> Verdict | None:
    for _ in range(_WRAPPERS):
        verdict = _by_nearest_class(exc)
        if verdict is not None:
            return verdict
        # SQLAlchemy stores the driver's exception in `orig`.
        inner = getattr(exc, "orig", None)
        if not isinstance(inner, BaseException):
            return None
        exc = inner
    return None


def _by_nearest_class(exc: BaseException) -> Verdict | None:
    for cls in type(exc).__mro__:
        if cls in _BY_CLASS:
            return _BY_CLASS[cls]
        if cls.__name__ in _BY_NAME:
            return _BY_NAME[cls.__name__]
        if cls is ValueError and _from_pydantic(exc):
            return _DEAD
    return None


def _from_pydantic(exc: BaseException) -> bool:
    """Whether a ValueError is about a payload: from pydantic, caused by such an error, or raised inside pydantic."""
    if any(_root(cls) in _PYDANTIC for cls in type(exc).__mro__):
        return True
    if any(_root(cls) in _PYDANTIC for cls in type(exc.__cause__).__mro__):
        return True
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _PYDANTIC


def _root(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]
