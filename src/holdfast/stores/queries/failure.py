"""Failing runs: which deploy a failure group began with, and the traceback of its newest dead letter."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.stores.operation import Query, Steps, columns, operation

_KIND = ("n", "fingerprint", "consumer", "example")


class FailingRuns(NamedTuple):
    """The generations of the workers that made the first and the last failing run of a group, and the last trace.

    A generation is none for runs that were recorded before generations were, or that ended with their lease.
    """

    first_generation: int | None
    last_generation: int | None
    trace: str | None


@operation(reads=True)
def failing_runs(groups: Sequence[tuple[str | None, str, UUID]]) -> Steps[list[FailingRuns]]:
    """The failing runs of each (fingerprint, consumer, newest dead letter): of the one that died first, and of the
    newest. Two look-ups for each group, however large it is."""
    if not groups:
        return []
    rows = yield Query(
        "failing_runs", batches={"kinds": columns(_KIND, [(n, *group) for n, group in enumerate(groups)])}
    )
    found = {n: FailingRuns(first, last, trace) for n, first, last, trace in rows}
    return [found[n] for n in range(len(groups))]
