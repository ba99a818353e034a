"""Maintenance: pruning, the schema, workers and the audit log."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import first_id
from holdfast.ops.queries.redaction import shown_entry
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin.actions import AuditEntry, record
from holdfast.stores.admin.audit import AuditFilter, audit_page
from holdfast.stores.deliveries import worker
from holdfast.stores.deliveries.progress import prune_progress
from holdfast.stores.deliveries.result import forget_results
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.groups.group import prune_groups
from holdfast.stores.integrations.idempotency import expired_requests, forget_requests
from holdfast.stores.messages.prune import FROM_THE_START, prunable, prune_deliveries, prune_messages, shortest_keep
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import MAX_PAGE, clock, prunable_messages
from holdfast.stores.workflows.run import prune_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows a pruning removed, or would remove."""

    delivered: int = 0
    discarded: int = 0
    messages: int = 0
    idempotency_keys: int = 0


def prunable_now(older_than: timedelta, *, discarded: bool = False, messages: bool = False) -> TaskSteps[Pruned]:
    """Counts what `prune` would remove; changes nothing."""
    now, shortest = (yield from transact(clock())), (yield from transact(shortest_keep()))
    top = first_id(now, -older_than)
    ceiling = top if shortest is None else first_id(now, -min(shortest, older_than))
    by_keep = shortest is not None
    return Pruned(
        delivered=(yield from transact(prunable(ceiling, older_than, by_keep=by_keep))),
        discarded=(yield from transact(prunable(top, older_than, discarded=True))) if discarded else 0,
        messages=(yield from transact(prunable_messages(top, older_than, discarded=discarded))) if messages else 0,
        idempotency_keys=(yield from transact(expired_requests())),
    )


def prune(
    older_than: timedelta,
    *,
    actor: str,
    discarded: bool = False,
    messages: bool = False,
    progress: Callable[[Pruned], None] | None = None,
) -> TaskSteps[Pruned]:
    """Removes delivered rows that are older than `older_than`, in small transactions; never dead letters. Audited.

    Delivered rows of a consumer with `keep=` are removed after the time of `keep=` instead. `discarded` also removes
    discarded rows, `messages` also messages that no delivery and no subscription needs. Expired idempotency keys and results
    are removed. It can be stopped at any time and started again.
    """
    now, shortest = (yield from transact(clock())), (yield from transact(shortest_keep()))
    top = first_id(now, -older_than)
    ceiling = top if shortest is None else first_id(now, -min(shortest, older_than))
    removed = Pruned()
    # Runs first: the deliveries and the message of a run stay while it exists.
    first: UUID | None = FROM_THE_START
    while first is not None:
        _, first = yield from transact(prune_runs(first, top, older_than))

    def batch_of(kind: str, cursor: UUID) -> Operation[tuple[int, UUID | None]]:
        if kind == "messages":
            return prune_messages(cursor, top, older_than)
        if kind == "discarded":
            return prune_deliveries(cursor, top, older_than, discarded=True)
        return prune_deliveries(cursor, ceiling, older_than, by_keep=shortest is not None)

    kinds = ["delivered", *(["discarded"] if discarded else []), *(["messages"] if messages else [])]
    counts = dict.fromkeys(kinds, 0)
    for kind in kinds:
        cursor: UUID | None = FROM_THE_START
        while cursor is not None:
            count, cursor = yield from transact(batch_of(kind, cursor))
            counts[kind] += count
            removed = Pruned(**counts)
            if progress is not None:
                progress(removed)
    first = FROM_THE_START
    while first is not None:
        first = yield from transact(prune_groups(first, older_than))
    while (yield from transact(forget_results())):
        pass
    while (yield from transact(prune_progress())):
        pass
    expired, more = 0, True
    while more:
        some, more = yield from transact(forget_requests())
        expired += some
    counts["idempotency_keys"] = expired
    removed = Pruned(**counts)
    yield from transact(record(actor, "prune", "store", "deliveries", None, {"older_than": str(older_than), **counts}))
    return removed


def worker_list() -> TaskSteps[list[WorkerRecord]]:
    """All known workers, oldest first. A worker that is not alive ended without deregistering."""
    return (yield from transact(worker.workers()))


def audit(
    *,
    limit: int = 50,
    before: int | None = None,
    target: tuple[str, str] | None = None,
    actor: str | None = None,
    action: str | None = None,
    kind: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> TaskSteps[list[AuditEntry]]:
    """The newest audit entries; pass the last id as `before` for the next. A plan is one entry, with its
    progress.

    A (kind, target) lists every entry of that item: each step of a plan, each action on a delivery.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MAX_PAGE} items, read the next page for more")
    if target is not None and kind not in (None, target[0]):
        raise ConfigurationError(f"the kind is {kind!r} but the target is a {target[0]}; omit one of them")
    wanted = AuditFilter(
        actor=actor,
        action=action,
        kind=kind if target is None else target[0],
        target=None if target is None else target[1],
        since=since,
        until=until,
    )
    return [shown_entry(entry) for entry in (yield from transact(audit_page(wanted, limit, before)))]


def schema_status() -> TaskSteps[SchemaStatus]:
    """The version of the tables, and the version that this release needs."""
    return (yield from call_store(lambda store: store.schema_status()))


def migrate(lock_timeout: timedelta = timedelta(seconds=10)) -> TaskSteps[list[str]]:
    """Migrates the tables to the version that this release needs; returns the names of the applied migrations."""
    return (yield from call_store(lambda store: store.migrate(lock_timeout)))


def schema_sql() -> TaskSteps[str]:
    """The tables as one SQL script, for people who apply it themselves. Needs no connection."""
    return (yield from call_store(_script))


def now_and_skew(local: Callable[[], datetime]) -> TaskSteps[timedelta]:
    """How far the clock of the database is ahead of this machine's, within the time of a round trip."""
    before = local()
    remote = yield from transact(clock())
    return remote - (before + (local() - before) / 2)


def _script(store: Store) -> str:
    # Chosen by name: this layer must not need the driver of a database that is not in use.
    text: str = import_module(f"holdfast.stores.{store.dialect.name}.store").schema_text(store.dialect)
    return text
