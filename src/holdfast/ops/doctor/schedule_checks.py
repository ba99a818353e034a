"""Checks of schedules: those that are due and do not fire."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from holdfast.ops.doctor.checks import Finding, Level
from holdfast.ops.doctor.work_checks import since
from holdfast.stores.messages.schedule import OverdueJob


def check_schedules(overdue: Sequence[OverdueJob], now: datetime) -> Iterator[Finding]:
    """A finding for each job whose schedules are due and do not fire."""
    for one in overdue:
        many = f"schedule {one.name} is" if one.count == 1 else f"{one.count:,} schedules of job {one.job} are"
        if not one.served:
            why = f"no running worker has the job {one.job}"
            remedy = f"start a worker that declares {one.job}; or see `holdfast schedules list --job {one.job}`, and remove them"
        elif one.declared:
            why = "the code no longer declares it with @hf.cron"
            remedy = f"pause it with `holdfast schedules pause {one.name}`"
        else:
            why = "workers do not fire it"
            remedy = "look for `schedule failed` in the logs of the workers, or add workers"
        yield Finding("schedules", Level.WARN, f"{many} overdue for {since(one.since, now)}: {why}", remedy)
