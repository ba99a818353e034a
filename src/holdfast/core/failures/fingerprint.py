"""Fingerprints: a short hash that is equal for equal failures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from types import TracebackType

from holdfast.core.failures.exception_groups import leaves
from holdfast.core.failures.frame import application_frames
from holdfast.core.values.text import safe_str, type_name

_FRAMES = 5
_CAUSES = 5
_LEAVES = 20
_MESSAGE = 2_000

# The most specific pattern first: otherwise another pattern replaces its digits.
_VARYING = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}"), "<email>"),
    (re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)"""), "<text>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:])"), "<address>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b[0-9a-fA-F]{16,}\b"), "<hex>"),
    (re.compile(r"(?<!\w)\w*\d[\w.,:-]*"), "<n>"),
    (re.compile(r"\s+"), " "),
)

# Python 3.12 inlines comprehensions: as frames they would give one failure two fingerprints.
_INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")


def fingerprint(exc: BaseException) -> str:
    """Return 16 hexadecimal characters, equal for the same failure in every process.

    Equal failures have the same exception and causes, the same innermost functions, and the same message without
    numbers, ids, addresses and quoted text. Line numbers are ignored, so an unrelated edit of the file changes nothing.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return _single(exc)
    members = {_single(member) for member in leaves(exc, _LEAVES)}
    return _digest([_single(exc), *sorted(members)])


def fingerprint_parts(type: str, message: str, frames: Sequence[str], causes: Sequence[str] = ()) -> str:
    """Return the fingerprint of a failure given as text; the last five of `frames` count, the innermost is last."""
    return _digest([type, *causes, "", *frames[-_FRAMES:], "", stable_message(message)])


def stable_message(message: str) -> str:
    """Return `message` with placeholders for values that often differ between two runs of one failure.

    >>> stable_message("no row 17 for 'ada' at 0x7f1c")
    'no row <n> for <text> at <hex>'
    """
    # Only the beginning: the end would depend on the length of the text before it.
    text = message[:_MESSAGE]
    for varying, word in _VARYING:
        text = varying.sub(word, text)
    return text.strip()


def _single(exc: BaseException) -> str:
    causes = [type_name(type(cause)) for cause in _causes(exc)]
    return fingerprint_parts(type_name(type(exc)), safe_str(exc), _frames(exc.__traceback__), causes)


def _frames(trace: TracebackType | None) -> list[str]:
    names: list[str] = []
    trace = application_frames(trace)
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name not in _INLINED:
            name = f"{trace.tb_frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
            # The depth of a recursion depends on its caller.
            if not names or names[-1] != name:
                names.append(name)
        trace = trace.tb_next
    return names[-_FRAMES:]


def _causes(exc: BaseException) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        if exc.__cause__ is None:
            return
        exc = exc.__cause__
        yield exc


def _digest(parts: Sequence[str]) -> str:
    joined = "\x1f".join(parts).encode("utf-8", "replace")
    return blake2b(joined, digest_size=8, person=b"failure").hexdigest()
