"""Error reports: the record of a failure as bounded, storable text for any exception."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.core.errors import CircuitOpen, ConfigurationError, EncryptionKeyMissing, InvalidPayload
from holdfast.core.failures.exception_groups import leaves
from holdfast.core.failures.exception_info import carried_status
from holdfast.core.failures.fingerprint import fingerprint, fingerprint_parts
from holdfast.core.failures.frame import application_frames, is_internal
from holdfast.core.redaction.redact import redacted
from holdfast.core.values.text import printable, safe_str, sanitize, type_name

MESSAGE_LIMIT = 2_000
TRACE_LIMIT = 16_000

_LOOKED_AT = 50_000
_CHAIN = 20
_HEAD_FRAMES = 20
_TAIL_FRAMES = 40
_NOTES = 10
_MEMBERS = 5


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A stored failure: all texts are bounded, and both databases can store them.

    `turned_away`: nothing was tried because a circuit was open or a key is missing. `http_status` is the status of a service's response.
    """

    type: str
    message: str
    trace: str
    fingerprint: str
    turned_away: bool = False
    http_status: int | None = None


def _named(type: str, message: str) -> ErrorReport:
    return ErrorReport(type, message, "", fingerprint_parts(type, message, ()))


LEASE_EXPIRED = _named("holdfast.LeaseExpired", "worker lease expired")
CUT_OFF = _named("holdfast.CutOff", "run was cut off at the shutdown deadline")


def report(exc: BaseException, hide: Callable[[str], str] | None = None) -> ErrorReport:
    """Return the report of `exc`; never fails because of it.

    Messages of 50 MB, a `__str__` that raises, circular causes, nested groups, NUL and lone surrogates all become text
    within `MESSAGE_LIMIT` and `TRACE_LIMIT`. Passwords in addresses are removed, and secrets with `hide`. Control
    characters are escaped, so that no text controls a terminal.
    """
    name = type_name(type(exc))
    try:
        trace = "".join(_trace(exc, hide))
        mark = fingerprint(exc)
    except Exception as broken:  # noqa: BLE001
        # An exception class can override anything, even `__cause__`. The failure must still be recorded.
        trace = f"{name}\n(its trace cannot be rendered: {type_name(type(broken))}: {safe_str(broken)})\n"
        mark = fingerprint_parts(name, "", ())
    turned_away = isinstance(exc, EncryptionKeyMissing) or (isinstance(exc, CircuitOpen) and exc.__cause__ is None)
    # Redact the whole text again: a source line may contain a secret.
    trace = sanitize(printable(redacted(trace, hide)), TRACE_LIMIT)
    return ErrorReport(name, _said(exc, hide), trace, mark, turned_away, carried_status(exc))


def _said(exc: BaseException, hide: Callable[[str], str] | None) -> str:
    return bounded_text(safe_str(exc) if hide is None else _without_input(exc) or safe_str(exc), hide)


def bounded_text(text: str, hide: Callable[[str], str] | None) -> str:
    """Return `text` without secrets, printable, within `MESSAGE_LIMIT`; the time it takes is bounded too."""
    # Redact before cutting: a partial secret would not be found.
    return sanitize(printable(redacted(sanitize(text, _LOOKED_AT), hide)), MESSAGE_LIMIT)


def _without_input(exc: BaseException) -> str | None:
    """Pydantic errors without the input values: pydantic truncates these, so redaction would not find secrets in them."""
    if type(exc).__name__ != "ValidationError" or not callable(errors := getattr(exc, "errors", None)):
        return None
    try:
        found = errors(include_input=False, include_url=False, include_context=False)
        return "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']} [{one['type']}]" for one in found)
    except Exception:  # noqa: BLE001 - it is another library's
        return None


def _trace(exc: BaseException, hide: Callable[[str], str] | None) -> Iterator[str]:
    """The causes, oldest first, in the format of Python, but bounded in every dimension.

    The standard library renders groups recursively and keeps whole messages. A payload, record or result that Holdfast refused
    has only its message: all frames would be those of Holdfast, and the cause repeats the message.
    """
    chain = list(_chain(exc))
    if isinstance(exc, ConfigurationError | InvalidPayload) and all(
        is_internal(link.__traceback__) for link, _ in chain
    ):
        yield _headline(exc, hide)
        return
    if len(chain) > _CHAIN:
        yield "(older causes left out)\n\n"
    for link, relation in reversed(chain[:_CHAIN]):
        yield from _rendered(link, hide)
        if isinstance(link, BaseExceptionGroup):
            yield from _members(link, hide)
        if relation:
            yield f"\n{relation}\n\n"


def _chain(exc: BaseException) -> Iterator[tuple[BaseException, str]]:
    """From `exc` to its oldest cause, each with its relation to the previous one."""
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


def _rendered(exc: BaseException, hide: Callable[[str], str] | None) -> Iterator[str]:
    if exc.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        frames = list(traceback.walk_tb(application_frames(exc.__traceback__)))
        if len(frames) > _HEAD_FRAMES + _TAIL_FRAMES:
            yield from traceback.StackSummary.extract(iter(frames[:_HEAD_FRAMES])).format()
            yield f"  ({len(frames) - _HEAD_FRAMES - _TAIL_FRAMES:,} frames left out)\n"
            frames = frames[-_TAIL_FRAMES:]
        yield from traceback.StackSummary.extract(iter(frames)).format()
    yield _headline(exc, hide)
    notes = getattr(exc, "__notes__", None)
    if isinstance(notes, list):
        looked_at = (sanitize(safe_str(note), _LOOKED_AT) for note in notes[:_NOTES])
        yield from (sanitize(printable(redacted(note, hide)), MESSAGE_LIMIT) + "\n" for note in looked_at)


def _headline(exc: BaseException, hide: Callable[[str], str] | None) -> str:
    message = _said(exc, hide)
    return f"{type_name(type(exc))}: {message}\n" if message else f"{type_name(type(exc))}\n"


def _members(group: BaseException, hide: Callable[[str], str] | None) -> Iterator[str]:
    members = list(leaves(group, _MEMBERS + 1))
    for number, member in enumerate(members[:_MEMBERS], start=1):
        yield f"\nMember {number} of the group:\n"
        yield from _rendered(member, hide)
    if len(members) > _MEMBERS:
        yield "\n(further members left out)\n"
