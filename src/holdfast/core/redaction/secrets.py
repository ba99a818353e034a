"""The secrets of one message, taken out of any text in time that grows with the text and with the secrets, not with both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import orjson

from holdfast.core.redaction.mask import REDACTED

SHORTEST = 3
_CERTAIN = 5
"""From so many characters on a secret is looked for anywhere; a shorter one only as a separate word."""

MOST_SECRETS = 10_000
MOST_CHARACTERS = 200_000
"""With more, the whole text is hidden."""

MOST_WORK = 200_000
"""Comparisons of a secret with a place in the text, longer secrets counted more; with more, the whole text is hidden."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9\-._~]")


class Secrets:
    """Replaces secrets in texts. What they are is found out at the first text: most runs log nothing and do not fail."""

    __slots__ = ("_find", "_index", "_too_many", "work")

    def __init__(self, find: Callable[[], Iterable[object]]) -> None:
        self._find: Callable[[], Iterable[object]] | None = find
        self._too_many = False
        self._index: dict[str, list[str]] = {}
        self.work = 0
        """The comparisons of the last text."""

    def __call__(self, text: str) -> str:
        """Return `text` without the secrets: at each place the longest goes. All of it is hidden where that took too long."""
        if self._find is not None:
            self._build(self._find())
            self._find = None
        if self._too_many:
            return REDACTED
        self.work = 0
        kept: list[str] = []
        copied = 0
        for at in self._places(text):
            if at < copied:
                continue
            length = self._longest(text, at)
            if length:
                kept += (text[copied:at], REDACTED)
                copied = at + length
            if self.work > MOST_WORK:
                return REDACTED
        return "".join((*kept, text[copied:])) if kept else text

    def _build(self, secrets: Iterable[object]) -> None:
        found: set[str] = set()
        total = 0
        for secret in secrets:
            if secret is None or isinstance(secret, bool):
                continue
            text = str(secret)
            if len(text) < SHORTEST or text in found:
                continue
            total += len(text)
            if total > MOST_CHARACTERS or len(found) > MOST_SECRETS:
                self._too_many = True
                return
            found.update(_spellings(text))
        # The longest first: one secret may begin with another.
        for text in sorted(found, key=lambda text: (-len(text), text)):
            self._index.setdefault(text[: min(len(text), _CERTAIN)], []).append(text)

    def _places(self, text: str) -> Iterator[int]:
        """Where a secret may begin."""
        index = self._index
        sizes = sorted({len(start) for start in index})
        if not sizes:
            return iter(())
        if sizes == [_CERTAIN]:
            return (at for at in range(len(text) - _CERTAIN + 1) if text[at : at + _CERTAIN] in index)
        return (at for at in range(len(text)) if any(text[at : at + size] in index for size in sizes))

    def _longest(self, text: str, at: int) -> int:
        for size in range(_CERTAIN, SHORTEST - 1, -1):
            for secret in self._index.get(text[at : at + size], ()):
                if len(secret) < size:
                    continue
                self.work += 1 + len(secret) // 64
                if text.startswith(secret, at) and (size == _CERTAIN or _is_word(text, at, at + size)):
                    return len(secret)
                if self.work > MOST_WORK:
                    return 0
        return 0


def _is_word(text: str, start: int, end: int) -> bool:
    return not (start and _joins(text[start - 1])) and not (end < len(text) and _joins(text[end]))


def _joins(character: str) -> bool:
    return character.isalnum() or character == "_"


def _spellings(text: str) -> Iterator[str]:
    """How a value may stand in a text: as it is, within quotes, in JSON, in an address."""
    yield text
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield orjson.dumps(text).decode()[1:-1]
    yield _UNSAFE.sub(lambda byte: b"%%%02X" % byte[0][0], text.encode("utf-8", "replace")).decode()
