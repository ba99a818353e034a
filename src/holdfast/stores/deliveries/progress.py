"""Progress: what running handlers report, in a small table, so that the deliveries themselves are not written."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from holdfast.stores.operation import Query, Steps, columns, operation
from holdfast.stores.row import row_reader

_REPORT = ("delivery_id", "fence", "fraction", "note")
_BATCH = 1000


class ReportedProgress(NamedTuple):
    """What the run of a delivery with this fence reported."""

    delivery_id: UUID
    fence: int
    fraction: float
    note: str | None


class JobProgress(NamedTuple):
    """The progress of the last run of a delivery, from 0 to 1, with a note of its handler."""

    fraction: float
    note: str | None
    reported_at: datetime


_progress = row_reader(JobProgress)


@operation
def report_progress(reports: Sequence[ReportedProgress]) -> Steps[None]:
    """Stores the progress of runs that still own their delivery, or whose failure ended it."""
    yield Query("report_progress", batches={"reports": columns(_REPORT, reports)})


@operation
def forget_progress(runs: Sequence[tuple[UUID, int]]) -> Steps[None]:
    """Removes the progress of delivered runs (delivery, fence)."""
    yield Query("forget_progress", batches={"runs": columns(("delivery_id", "fence"), runs)})


@operation
def prune_progress() -> Steps[bool]:
    """Removes a batch of rows that workers left; returns whether there may be more."""
    return len((yield Query("prune_progress", limit=_BATCH))) == _BATCH


@operation(reads=True)
def progress_of(delivery_id: UUID) -> Steps[JobProgress | None]:
    """What the last run of a delivery reported; None if nothing, and once it is delivered."""
    rows = yield Query("progress_of", {"delivery_id": delivery_id})
    return _progress(rows[0]) if rows else None
