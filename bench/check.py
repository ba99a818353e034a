"""Whether a run was right: each id was handled, none twice, and the store agrees. A wrong run has no speed."""

from collections.abc import Sequence
from typing import Any


class Wrong(Exception):
    """A run lost or repeated something; its figures are thrown away and the report says so."""


def check(count: int, ids: Sequence[int], settled: dict[str, Any]) -> None:
    """`ids` are those the handler saw, in any order; `settled` is what the store says, as far as it can tell."""
    seen = set(ids)
    if strange := seen - set(range(count)):
        raise Wrong(f"{len(strange)} ids were handled that were never published")
    if lost := count - len(seen):
        raise Wrong(f"{lost} of {count} were never handled")
    if repeated := len(ids) - len(seen):
        raise Wrong(f"{repeated} of {count} were handled again")
    if settled.get("settled", count) != count:
        raise Wrong(f"the store holds {settled['settled']} settled of {count}")
    if settled.get("twice"):
        raise Wrong(f"the store holds {settled['twice']} that were settled or tried twice")
