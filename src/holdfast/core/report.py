"""Error reports: what is recorded of a failure, bounded and storable whatever the failure was."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.errors import CircuitOpen
from holdfast.core.fingerprint import fingerprint, fingerprint_parts
from holdfast.core.group import leaves
from holdfast.core.text import safe_str, sanitise, type_name

MESSAGE_LIMIT = 2_000
TRACE_LIMIT = 16_000

_CHAIN = 20
_HEAD_FRAMES = 20
_TAIL_FRAMES = 40
_NOTES = 10
_MEMBERS = 5


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A failure as it is stored: every text is bounded and one that both databases take.

    `turned_away` says that nothing was tried, because a circuit was open.
    """

    type: str
    message: str
    trace: str
    fingerprint: str
    turned_away: bool = False


def _named(type: str, message: str) -> ErrorReport:
    return ErrorReport(type, message, "", fingerprint_parts(type, message, ()))


LEASE_EXPIRED = _named("holdfast.LeaseExpired", "worker lease expired")
CUT_OFF = _named("holdfast.CutOff", "run was cut off at the shutdown deadline")


def report(exc: BaseException) -> ErrorReport:
    """Return the report of `exc`; never fails because of it.

    Messages of 50 MB, a `__str__` that raises, causes in a circle, groups within groups, NUL and lone
    surrogates all end as text within `MESSAGE_LIMIT` and `TRACE_LIMIT`.
    """
    name = type_name(type(exc))
    try:
        trace = "".join(_trace(exc))
        mark = fingerprint(exc)
    except Exception as broken:  # noqa: BLE001
        # An exception class can override anything, down to __cause__. It still has to be recorded.
        trace = f"{name}\n(its trace cannot be rendered: {type_name(type(broken))}: {safe_str(broken)})\n"
        mark = fingerprint_parts(name, "", ())
    turned_away = isinstance(exc, CircuitOpen) and exc.__cause__ is None
    return ErrorReport(name, sanitise(safe_str(exc), MESSAGE_LIMIT), sanitise(trace, TRACE_LIMIT), mark, turned_away)


def _trace(exc: BaseException) -> Iterator[str]:
    """The oldest cause first, as Python prints it, but bounded in every dimension.

    The standard library's own rendering follows groups by recursion and keeps whole messages.
    """
    chain = list(_chain(exc))
    if len(chain) > _CHAIN:
        yield "(older causes left out)\n\n"
    for link, relation in reversed(chain[:_CHAIN]):
        yield from _rendered(link)
        if isinstance(link, BaseExceptionGroup):
            yield from _members(link)
        if relation:
            yield f"\n{relation}\n\n"


def _chain(exc: BaseException) -> Iterator[tuple[BaseException, str]]:
    """From `exc` to its oldest cause, each with how it relates to the one before."""
    seen: set[int] = set()
    link: BaseException | None = exc
    relation = ""
    while link is not None and id(link) not in seen and len(seen) <= _CHAIN:
        seen.add(id(link))
        yield link, relation
        if link.__cause__ is not None:
            link, relation = (
                link.__cause__,
                "The above exception was the direct cause of the following exception:",
            )
        elif link.__suppress_context__:
            return
        else:
            link, relation = (
                link.__context__,
                "During handling of the above exception, another exception occurred:",
            )


def _rendered(exc: BaseException) -> Iterator[str]:
    if exc.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        frames = list(traceback.walk_tb(exc.__traceback__))
        if len(frames) > _HEAD_FRAMES + _TAIL_FRAMES:
            yield from traceback.StackSummary.extract(iter(frames[:_HEAD_FRAMES])).format()
            yield f"  ({len(frames) - _HEAD_FRAMES - _TAIL_FRAMES:,} frames left out)\n"
            frames = frames[-_TAIL_FRAMES:]
        yield from traceback.StackSummary.extract(iter(frames)).format()
    message = sanitise(safe_str(exc), MESSAGE_LIMIT)
    yield f"{type_name(type(exc))}: {message}\n" if message else f"{type_name(type(exc))}\n"
    notes = getattr(exc, "__notes__", None)
    if isinstance(notes, list):
        yield from (sanitise(safe_str(note), MESSAGE_LIMIT) + "\n" for note in notes[:_NOTES])


def _members(group: BaseException) -> Iterator[str]:
    members = list(leaves(group, _MEMBERS + 1))
    for number, member in enumerate(members[:_MEMBERS], start=1):
        yield f"\nMember {number} of the group:\n"
        yield from _rendered(member)
    if len(members) > _MEMBERS:
        yield "\n(further members left out)\n"
