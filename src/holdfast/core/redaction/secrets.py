"""Removal of one message's secrets from any text, in time proportional to the sum of their lengths, not to the product."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import orjson

from holdfast.core.redaction.mask import REDACTED

SHORTEST = 3
_CERTAIN = 5
"""A secret of at least this length is searched anywhere; a shorter one only as a separate word."""

MOST_SECRETS = 10_000
MOST_CHARACTERS = 200_000
"""With more secrets or more characters than this, the whole text is redacted."""

MOST_WORK = 200_000
"""The maximum number of comparisons, where long secrets count more; above it the whole text is redacted."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9\-._~]")


class Secrets:
    """Replaces secrets in texts. The secrets are collected at the first text, because most runs log nothing."""

    __slots__ = ("_find", "_index", "_too_many", "work")

    def __init__(self, find: Callable[[], Iterable[object]]) -> None:
        self._find: Callable[[], Iterable[object]] | None = find
        self._too_many = False
        self._index: dict[str, list[str]] = {}
        self.work = 0
        """The comparisons of the last text."""

    def __call__(self, text: str) -> str:
        """Return `text` with the longest secret at each position replaced; above the limits all of it is redacted."""
        if self._find is not None:
            self._build(self._find())
            self._find = None
        if self._too_many:
            return REDACTED
        self.work = 0
        kept: list[str] = []
        copied = 0
        for at in self._positions(text):
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
        # Longest first: one secret may begin with another.
        for text in sorted(found, key=lambda text: (-len(text), text)):
            self._index.setdefault(text[: min(len(text), _CERTAIN)], []).append(text)

    def _positions(self, text: str) -> Iterator[int]:
        """The positions where a secret may begin."""
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
    """The forms of a value in a text: unchanged, in quotes, in JSON, in a URL."""
    yield text
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield orjson.dumps(text).decode()[1:-1]
    yield _UNSAFE.sub(lambda byte: b"%%%02X" % byte[0][0], text.encode("utf-8", "replace")).decode()
