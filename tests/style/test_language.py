"""Texts and names stay in plain technical English: words that were removed must not return.

A word is listed here with its replacement. An exception needs a reason.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REPLACED_WORDS = {
    r"anew": "again, new, re-",
    r"(?:who|what|wher|which|how)ever\b(?!,)": "any, the caller; name the thing",
    r"seldom": "rarely",
    r"dear|dearer|dearly": "expensive",
    r"mend|mends|mended|mending": "fix",
    r"(?:go|goes|going|went) on": "continue",
    r"told|tells|telling": "receives, reports, is notified",
    r"beside": "next to, compared with",
    r"of (?:its|their|our|his) own": "separate, its",
    r"a look": "a scan, a query, a check",
    r"set right|put right": "correct, reconcile",
    r"comes round": "is due",
    r"all the same": "anyway, still",
    r"by itself|by themselves": "automatically, alone",
    r"for good": "permanently",
    r"as it came": "unchanged",
    r"in force": "current",
    r"in its stead|in place of": "instead of",
    r"nobody(?![`\"@])": "no worker, no process, no one",
    r"somebody": "a user, another process",
    r"meanwhile": "in the meantime, concurrently",
}
"""Regular expressions of words and phrases, with what to write instead."""

ALLOWED = {
    "CODE_OF_CONDUCT.md": "a text of another project",
    "test_language.py": "lists the words",
}


def _texts() -> Iterator[Path]:
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "src").rglob("*.sql"))
    yield from sorted((ROOT / "src").rglob("*.html"))
    yield from sorted((ROOT / "bench").rglob("*.py"))
    yield from sorted((ROOT / "chaos").rglob("*.py"))
    yield from sorted((ROOT / "simulation").rglob("*.py"))
    yield from sorted((ROOT / "tests").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", ".ci/run"))


@cache
def _lines() -> list[tuple[Path, int, str]]:
    """Every line with its place. The words of a test's name count as words."""
    return [
        (path.relative_to(ROOT), number, line.replace("_", " ") if "def test_" in line else line)
        for path in _texts()
        if path.name not in ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


@pytest.mark.parametrize("words", REPLACED_WORDS)
def test_a_replaced_word_does_not_return(words: str) -> None:
    pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    found = [f"{path}:{number}: {line.strip()}" for path, number, line in _lines() if pattern.search(line)]
    shown = "\n".join(found[:40])
    assert not found, f"{len(found)} lines; write {REPLACED_WORDS[words]}:\n{shown}"
