"""Payloads by field: what two of them have in common, and which inputs a failure has that successes do not."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from holdfast.core.encryption import encrypted_value

_MAX_FIELDS = 200
_MAX_BYTES = 1_000_000
_TOP = 3


@dataclass(frozen=True, slots=True)
class FieldPair:
    """A field of two payloads; None where a payload does not have it."""

    path: str
    left: str | None
    right: str | None

    @property
    def is_equal(self) -> bool:
        return self.left == self.right


@dataclass(frozen=True, slots=True)
class InputField:
    """The values of a field in samples of failed and of delivered messages, the most frequent first.

    `is_suspect`: all failed ones have the same value, and no delivered one has it.
    """

    path: str
    failed: tuple[tuple[str, int], ...]
    failed_values: int
    delivered: tuple[tuple[str, int], ...]
    delivered_values: int
    is_suspect: bool


def fields(payload: str) -> dict[str, str]:
    """The fields of a stored payload by path, with their values as JSON; the first 200.

    >>> fields('{"order": {"id": 7, "lines": ["a"]}}')
    {'order.id': '7', 'order.lines.0': '"a"'}
    """
    if len(payload) > _MAX_BYTES or encrypted_value(payload) is not None:
        return {}
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    found: dict[str, str] = {}
    for path, text in _walk("", value):
        found[path or "$"] = text
        if len(found) == _MAX_FIELDS:
            break
    return found


def compare(left: str, right: str) -> list[FieldPair]:
    """The fields of both payloads, those that differ first."""
    a, b = fields(left), fields(right)
    pairs = [FieldPair(path, a.get(path), b.get(path)) for path in dict.fromkeys((*a, *b))]
    return sorted(pairs, key=lambda one: one.is_equal)


def input_fields(failed: Sequence[str], delivered: Sequence[str]) -> list[InputField]:
    """The fields of samples of payloads, suspect ones first, then those with the fewest values among the failed."""
    bad, good = [fields(one) for one in failed], [fields(one) for one in delivered]
    found = []
    for path in dict.fromkeys(path for one in bad for path in one):
        mine = Counter(one[path] for one in bad if path in one)
        others = Counter(one[path] for one in good if path in one)
        same = len(mine) == 1 and sum(mine.values()) == len(bad) > 1
        found.append(
            InputField(
                path,
                tuple(mine.most_common(_TOP)),
                len(mine),
                tuple(others.most_common(_TOP)),
                len(others),
                same and bool(good) and not mine.keys() & others.keys(),
            )
        )
    return sorted(found, key=lambda one: (not one.is_suspect, one.failed_values))


def _walk(path: str, value: object) -> Iterator[tuple[str, str]]:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )  # an empty one is a value
    if not value or not isinstance(value, dict | list):
        yield path, orjson.dumps(value).decode()
        return
    for name, child in children:
        yield from _walk(f"{path}.{name}" if path else str(name), child)
