"""Checks of the deliveries: dead letters, failing consumers, and deliveries that wait too long."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from holdfast.core.values.bounded_count import total
from holdfast.core.values.duration import format_duration
from holdfast.ops.doctor.checks import Facts, Finding, Level, many_deliveries
from holdfast.stores.queries.query import FailureGroup
from holdfast.stores.queries.throughput import Retrying

RECENT = timedelta(minutes=15)
"""A consumer that failed within this time is failing; a delivery that has been due for longer is old."""
GROUPS = 200
"""How many failure groups are read."""
_SHOWN = 10
_ERROR = 120


def check_work(facts: Facts, groups: Sequence[FailureGroup], retrying: Sequence[Retrying]) -> list[Finding]:
    """The findings that operators need first: failing consumers, dead letters, old deliveries."""
    return [*_failing(groups, retrying, facts.now), *_dead(facts, groups), *_old(facts)]


def _failing(groups: Sequence[FailureGroup], retrying: Sequence[Retrying], now: datetime) -> Iterator[Finding]:
    """Consumers with a recent dead letter, then those whose failures are still retried."""
    dying: dict[str, FailureGroup] = {}
    for group in groups:
        last = group.last_failed_at
        newest = dying.get(group.consumer)
        if last is not None and now - last < RECENT and (newest is None or last > (newest.last_failed_at or last)):
            dying[group.consumer] = group
    for consumer, group in list(dying.items())[:_SHOWN]:
        yield Finding(
            "failing",
            Level.FAIL,
            f"{consumer} is failing: last dead letter {since(group.last_failed_at, now)} ago; {_error(group)}",
            f"run `holdfast dlq show {group.example}`",
        )
    for one in retrying[:_SHOWN]:
        if one.consumer not in dying:
            yield Finding(
                "failing",
                Level.WARN,
                f"{one.consumer} is failing: {many_deliveries(one.count)} failed with {one.error_type}, to be retried",
                f"run `holdfast deliveries show {one.example}`",
            )


def _dead(facts: Facts, groups: Sequence[FailureGroup]) -> Iterator[Finding]:
    dead = total(row.count for row in facts.counts if row.state == "failed")
    if not dead:
        yield Finding("dead letters", Level.OK, "there are none")
        return
    more = " or more" if len(groups) == GROUPS else ""
    kinds = f" in {len(groups):,} groups{more}" if len(groups) > 1 else ""
    message = f"{dead:,} dead letter{'' if dead == 1 else 's'}{kinds}"
    command = "holdfast replay --status failed --dry-run"
    if groups:
        largest = max(groups, key=lambda group: group.count)
        age = "" if largest.first_failed_at is None else f" for {since(largest.first_failed_at, facts.now)}"
        deploy = "" if largest.first_generation is None else f", first failed in generation {largest.first_generation}"
        if largest.fingerprint is not None:
            command = f"holdfast replay --group {largest.fingerprint} --consumer {largest.consumer} --dry-run"
        message += f"; {largest.count:,} of {largest.consumer}{age}{deploy}: {_error(largest)}"
    yield Finding("dead letters", Level.WARN, message, f"run `holdfast dlq groups`, then `{command}`")


def _old(facts: Facts) -> Iterator[Finding]:
    """Deliveries that have been due for long without a pause or a block; those are separate findings."""
    waiting = {one.name for one in facts.consumers if one.paused_at or (one.blocked_until or facts.now) > facts.now}
    with_flow = {one.name for one in facts.consumers if one.flow is not None}
    for row in facts.counts:
        if (
            row.state != "pending"
            or row.oldest_at is None
            or row.queue in facts.paused_queues
            or row.consumer in waiting
        ):
            continue
        if facts.now - row.oldest_at > RECENT:
            yield Finding(
                "old work",
                Level.WARN,
                f"{many_deliveries(row.count)} for {row.consumer} in queue {row.queue}: the oldest has been due for "
                f"{since(row.oldest_at, facts.now)}",
                f"see what holds its keys up with `holdfast consumers keys {row.consumer}`, or add workers"
                if row.consumer in with_flow
                else f"add workers, or see `holdfast deliveries list --status pending --consumer {row.consumer}`",
            )


def _error(group: FailureGroup) -> str:
    error = " ".join((group.last_error or "").split())
    if len(error) > _ERROR:
        error = f"{error[:_ERROR].rpartition(' ')[0] or error[:_ERROR]} …"
    frame = f" at {group.frame}" if group.frame else ""
    return f"{group.error_type or 'error'}: {error}{frame}"


def since(at: datetime | None, now: datetime) -> str:
    """The time since `at` in words."""
    if at is None:
        return "?"
    seconds = max(0, int((now - at).total_seconds()))
    return format_duration(timedelta(seconds=seconds if seconds < 60 else seconds - seconds % 60))
