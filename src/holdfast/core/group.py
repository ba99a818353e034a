"""Groups of jobs: what a job of a later stage receives, and what it does if jobs before it failed."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

GROUP_HEADER = "holdfast_group"
"""The header with the group and the stage of a job."""

GROUP_MARK = f'"{GROUP_HEADER}"'
"""Part of the stored headers of every job of a group."""


class OnFailure(StrEnum):
    """What happens to a job when a job of the stage before has failed or was cancelled."""

    RUN = "run"
    SKIP = "skip"
    DEAD = "dead"


class StageInput(StrEnum):
    """What the first parameter of a job of a later stage gets: the result of the one job before it, or all results."""

    RESULT = "result"
    RESULTS = "results"


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """How the jobs of a group ended. Its size does not depend on the number of jobs.

    `await hf.group_handle(summary.id).members()` reads the jobs with their results, page by page.
    """

    id: UUID
    total: int
    done: int
    failed: int
    cancelled: int


def group_header(group_id: UUID, stage: int) -> str:
    """The value of the header of a job."""
    return f"{group_id}/{stage}"


def read_group_header(value: str | None) -> tuple[UUID, int] | None:
    """The group and the stage of a job; None for a value that no group wrote."""
    group, _, stage = (value or "").partition("/")
    try:
        return UUID(group), int(stage)
    except ValueError:
        return None
