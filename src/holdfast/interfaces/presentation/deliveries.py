"""Deliveries in words: state, attempts, the scope of a search, and the commands that apply next."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from holdfast.core.delivery import Status
from holdfast.interfaces.presentation.formatting import ago, clock, one_line, percent
from holdfast.ops.queries.deliveries import DeliveryDetail
from holdfast.ops.queries.search import SearchResult
from holdfast.ops.resources.consumers import ConsumerState
from holdfast.ops.resources.queues import QueueState
from holdfast.stores.admin.plan import Action, StoredPlan
from holdfast.stores.deliveries.progress import JobProgress
from holdfast.stores.queries.query import DeliverySummary

_SAMPLE = 10


def state(listed: DeliverySummary) -> str:
    """The displayed state: the status, except for discarded and suspect deliveries."""
    row = listed.delivery
    if row.discarded_at is not None:
        return "discarded"
    return "suspect" if row.suspect and row.status == "pending" else row.status.value


def attempts(listed: DeliverySummary) -> str:
    """The runs, and while another one is possible their limit: a task that is dead after its only run is not at 1/5."""
    row = listed.delivery
    if row.status is Status.FAILED and row.attempts < (row.max_attempts or 0):
        return str(row.attempts)
    return f"{row.attempts}/{row.max_attempts}" if row.max_attempts else str(row.attempts)


def progress_text(progress: JobProgress, now: datetime) -> str:
    """What the last run reported, as `40 %, charging, 2s ago`."""
    note = f", {one_line(progress.note)}" if progress.note else ""
    return f"{percent(progress.fraction)}{note}, {ago(progress.reported_at, now)}"


def next_commands(detail: DeliveryDetail) -> Iterator[tuple[str, str]]:
    """The commands that apply to the current state, each with its label."""
    row = detail.listed.delivery
    if row.dead:
        yield "replay it", f"holdfast replay --id {row.id}"
        if detail.alike is not None and detail.alike > 1 and row.fingerprint:
            yield (
                f"list all {detail.alike:,}",
                f"holdfast dlq list --group {row.fingerprint} --consumer {row.consumer}",
            )
            replay = f"holdfast replay --group {row.fingerprint} --consumer {row.consumer}"
            if detail.alike > _SAMPLE:
                yield f"replay a sample of {_SAMPLE}", f"{replay} --limit {_SAMPLE}"
            yield f"replay all {detail.alike:,}", replay
        yield "discard it", f"holdfast dlq discard {row.id}"
    elif row.status is Status.DELIVERED:
        yield "run it again", f"holdfast replay --id {row.id} --rerun"
    elif row.status in (Status.PENDING, Status.IN_FLIGHT):
        yield "cancel it", f"holdfast deliveries cancel {row.id}"


def pauses(plan: StoredPlan, consumers: Iterable[ConsumerState], queues: Iterable[QueueState]) -> list[tuple[str, str]]:
    """The pauses that keep the deliveries of a replay from running, each as `consumer` or `queue` with its name."""
    if plan.action is not Action.REPLAY:
        return []
    affected = [one for one in consumers if one.name in plan.preview.consumers]
    served = {one.queue for one in affected}
    found = [("consumer", one.name) for one in affected if one.paused_at is not None]
    return found + [("queue", one.name) for one in queues if one.paused_at is not None and one.name in served]


def search_scope(found: SearchResult) -> str:
    """Describes which deliveries a search covered."""
    dead = (
        "all dead letters" if found.dead_scanned is None else f"about {found.dead_scanned:,} of the newest dead letters"
    )
    rest = (
        "all other deliveries" if found.scanned is None else f"about {found.scanned:,} of the newest other deliveries"
    )
    since = "" if found.back_to is None else f", back to {clock(found.back_to)}"
    return f"searched {dead} and {rest}{since}"
