"""Failing runs: the deploy in which a failure group began, and the traceback of its newest dead letter."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.stores.operation import Query, Steps, columns, operation

_KIND = ("n", "fingerprint", "consumer", "example")


class FailingRuns(NamedTuple):
    """The worker generations of the first and the last failing run of a group, and the last traceback.

    A generation is None for old records without one, and for runs whose lease expired.
    """

    first_generation: int | None
    last_generation: int | None
    trace: str | None


@operation(reads=True)
def failing_runs(groups: Sequence[tuple[str | None, str, UUID]]) -> Steps[list[FailingRuns]]:
    """The first and the newest failing run of each (fingerprint, consumer, newest dead letter). Two lookups per group of
    any size."""
    if not groups:
        return []
    rows = yield Query(
        "failing_runs", batches={"kinds": columns(_KIND, [(n, *group) for n, group in enumerate(groups)])}
    )
    found = {n: FailingRuns(first, last, trace) for n, first, last, trace in rows}
    return [found[n] for n in range(len(groups))]
