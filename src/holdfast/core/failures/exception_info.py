"""Information in the attributes of an exception: an HTTP status, a wait, the name of a resource.

The attributes of unknown exceptions may be properties that raise; these functions never raise.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.core.errors import CircuitOpen, RetryAfter
from holdfast.core.failures.http import parse_date, parse_retry_after
from holdfast.core.values.text import type_name


def carried_status(exc: BaseException) -> int | None:
    """Return the HTTP status of `exc`, or None.

    It is read from `status_code`, `status`, the same attributes of `response`, and `code` of HTTP exceptions.
    """
    response = _read(exc, "response")
    for value in (
        _read(exc, "status_code"),
        _read(exc, "status"),
        _read(response, "status_code"),
        _read(response, "status"),
        _read(exc, "code") if _speaks_http(exc) else None,
    ):
        if isinstance(value, int) and 100 <= value <= 599:
            return int(value)
    return None


def carried_retry_after(exc: BaseException, now: datetime | None) -> tuple[str | None, datetime | None]:
    """Return the Retry-After header of `exc` and its reference time: the Date of the response, else `now`."""
    for holder in (_read(exc, "response"), exc):
        headers = _read(holder, "headers")
        value = _header(headers, "Retry-After")
        if value is not None:
            date = _header(headers, "Date")
            return value, (parse_date(date) if date else None) or now
    return None, now


def carried_wait(exc: BaseException, now: datetime | None) -> timedelta | datetime | None:
    """Return the wait that `exc` requests, as a duration or a time; None without one."""
    if isinstance(exc, RetryAfter):
        return exc.delay
    if isinstance(exc, CircuitOpen):
        return exc.until
    return parse_retry_after(*carried_retry_after(exc, now))


def carried_name(exc: BaseException) -> str:
    """Return the unavailable resource of `exc`: its `resource` or `name`, else the name of its class."""
    for attribute in ("resource", "name"):
        value = _read(exc, attribute)
        if isinstance(value, str) and value:
            return value
    return type_name(type(exc))


def _read(holder: object, attribute: str) -> object:
    try:
        value: object = getattr(holder, attribute, None)
    except Exception:  # noqa: BLE001
        return None
    return value


def _header(headers: object, name: str) -> str | None:
    get = _read(headers, "get")
    if not callable(get):
        return None
    for spelling in (name, name.lower()):
        try:
            value: object = get(spelling)
        except Exception:  # noqa: BLE001
            return None
        if isinstance(value, str | int):
            return str(value)
    return None


def _speaks_http(exc: BaseException) -> bool:
    return any("http" in f"{cls.__module__}.{cls.__name__}".lower() for cls in type(exc).__mro__)
