"""The frame of a traceback in application code."""

from __future__ import annotations

import re
from types import TracebackType

_FRAME = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_FOREIGN = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3?(?:\.\d+)?[/\\]|[/\\]Python3\d+[/\\]Lib[/\\]|^<"
    r"|[/\\]src[/\\]holdfast[/\\]"
)
_OURS = re.compile(r"[/\\](?:site-packages|dist-packages|src)[/\\]holdfast[/\\]")


def own_frame(trace: str | None) -> str | None:
    """Return `file:line in function` of the innermost frame outside installed packages and the standard library.

    It reads the last traceback of a chain, which is the exception that ended the run, then those of its causes. Without such
    a frame it returns the innermost one that is not of Holdfast, if any; for text that is not a traceback it returns None.

    >>> own_frame('Traceback (most recent call last):\\n  File "/srv/shop/mail.py", line 7, in send\\nValueError')
    '/srv/shop/mail.py:7 in send'
    """
    if not trace:
        return None
    last = max(trace.rfind("Traceback (most recent call last):"), 0)
    # Of the last traceback, else of the cause: an exception that Holdfast raises, such as HandlerTimeout, has only our frames.
    own = _innermost(trace, last, len(trace), _FOREIGN) or _innermost(trace, 0, last, _FOREIGN)
    own = own or _innermost(trace, last, len(trace), _OURS)
    if own is None:
        return None
    name = f" in {own['name']}" if own["name"] else ""
    return f"{own['file']}:{own['line']}{name}"


def _innermost(trace: str, start: int, end: int, omitted: re.Pattern[str]) -> re.Match[str] | None:
    frames = reversed(list(_FRAME.finditer(trace, start, end)))
    return next((frame for frame in frames if not omitted.search(frame["file"])), None)


def application_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from its first frame outside Holdfast; the whole traceback without such a frame."""
    outer = trace
    while outer is not None and _is_ours(str(outer.tb_frame.f_globals.get("__name__"))):
        outer = outer.tb_next
    return trace if outer is None else outer


def is_internal(trace: TracebackType | None) -> bool:
    """Whether all frames of the traceback are in Holdfast, or in pydantic, which validates for it."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if not _is_ours(module) and module.partition(".")[0] != "pydantic":
            return False
        trace = trace.tb_next
    return True


def _is_ours(module: str) -> bool:
    return module == "holdfast" or module.startswith("holdfast.")
