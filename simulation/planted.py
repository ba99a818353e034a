"""Planted bugs: small patches of Holdfast that the checker must find.

A statement mutation replaces one text in the SQL of the SQLite dialect. Others replace a function of the engine.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

from holdfast.brokers.relay import RelayRunner
from holdfast.core import decide
from holdfast.core.outcome import Failed, Outcome, Released, Succeeded
from holdfast.core.retry import RetryPolicy
from holdfast.engine.claims.orphaned_claims import OrphanedClaims
from holdfast.engine.claims.scheduler import CostDelay
from holdfast.engine.execution.executor import DeliveryExecutor
from holdfast.engine.handlers.context import Context
from holdfast.engine.maintenance.reaper import Reaper
from holdfast.engine.settlement.settler import Settler
from holdfast.engine.worker.control import WorkerControl
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.session import WorkerSession
from holdfast.produce.producer import Producer
from holdfast.stores.statement import Statement
from simulation.database import AnyDatabase


@dataclass(frozen=True, slots=True)
class Replacement:
    """In a statement, fragment or trigger (`where`), one text becomes another."""

    where: str
    text: str
    by: str = "true"


Install = Callable[[contextlib.ExitStack], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """A defect with a name: replaced SQL texts, replaced functions, or both."""

    name: str
    replacements: tuple[Replacement, ...] = ()
    install: Install | None = None
    only_on: str | None = None
    """The only store on which it is a defect."""

    @property
    def stores(self) -> frozenset[str]:
        """The stores on which it can be planted: SQL is replaced in the SQLite dialect only."""
        if self.only_on is not None:
            return frozenset({self.only_on})
        return frozenset({"sqlite"} if self.replacements else {"sqlite", "postgres"})


@contextlib.contextmanager
def planted(bug: Bug, database: AnyDatabase) -> Iterator[None]:
    """The database and the engine with the bug; as they were afterwards."""
    with contextlib.ExitStack() as stack:
        for one in bug.replacements:
            stack.enter_context(_replaced(one, database))
        if bug.install is not None:
            bug.install(stack)
        yield


@contextlib.contextmanager
def _replaced(one: Replacement, database: AnyDatabase) -> Iterator[None]:
    statements = database.dialect.statements
    kept = statements._statements, statements._fragments
    if one.where.startswith("trigger "):
        with _replaced_trigger(one, database.connection):
            yield
        return
    if one.where in kept[0]:
        statements._statements = {**kept[0], one.where: _mutated(kept[0][one.where], one)}
    else:
        statements._fragments = {**kept[1], one.where: _cut(kept[1][one.where], one)}
    _forget_compiled(database)
    try:
        yield
    finally:
        statements._statements, statements._fragments = kept
        _forget_compiled(database)


@contextlib.contextmanager
def _replaced_trigger(one: Replacement, connection: sqlite3.Connection) -> Iterator[None]:
    name = one.where.removeprefix("trigger ")
    ((original,),) = connection.execute("select sql from sqlite_master where name = ?", (name,)).fetchall()
    connection.execute(f"drop trigger {name}")
    connection.execute(_cut(original, one))
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
        connection.execute(f"drop trigger {name}")
        connection.execute(original)


def _mutated(statement: Statement, one: Replacement) -> Statement:
    steps = tuple(
        replace(step, statements=tuple(text.replace(one.text, one.by) for text in step.statements))
        for step in statement.steps
    )
    _check(sum(text.count(one.text) for step in statement.steps for text in step.statements), one)
    return replace(statement, steps=steps)


def _cut(text: str, one: Replacement) -> str:
    _check(text.count(one.text), one)
    return text.replace(one.text, one.by)


def _check(found: int, one: Replacement) -> None:
    if found != 1:
        raise ValueError(f"{one.where} contains {one.text!r} {found} times; a planted bug replaces it once")


def _forget_compiled(database: AnyDatabase) -> None:
    statements = database.dialect.statements
    statements.render = cache(statements._render)
    database.dialect._compiled.cache_clear()


def _patching(target: Any, name: str, make: Callable[[Any], Any]) -> Install:
    """Replaces a function by what `make` returns for the original."""

    def install(stack: contextlib.ExitStack) -> None:
        stack.enter_context(patch.object(target, name, make(getattr(target, name))))

    return install


def _no_scan(original: Any) -> Any:
    async def nothing(self: Any, *args: Any) -> None:
        """Leaves the work undone."""

    return nothing


def _idle_reaper(original: Any) -> Any:
    async def reap(self: Reaper) -> float:
        return self._longest_wait

    return reap


def _acknowledged_first(original: Any) -> Any:
    def run(self: DeliveryExecutor, claimed: Any, task: Any) -> Any:
        self.settle(claimed, Succeeded())
        return original(self, claimed, task)

    return run


def _only_notified(original: Any) -> Any:
    async def woken(self: WorkerControl, seconds: float) -> None:
        await self.wake.wait()

    return woken


def _decided(wrong: Callable[[Outcome], bool]) -> Install:
    """Treats some outcomes as a success."""

    def make(original: Any) -> Any:
        def decided(delivery: Any, outcome: Outcome, policy: RetryPolicy, random: float) -> Any:
            return original(delivery, Succeeded() if wrong(outcome) else outcome, policy, random)

        return decided

    def install(stack: contextlib.ExitStack) -> None:
        from holdfast.engine.settlement import builder

        stack.enter_context(patch.object(builder, "decide", make(decide.decide)))

    return install


def _budget(change: int) -> Install:
    return _patching(decide, "budget", lambda original: lambda delivery, policy: original(delivery, policy) + change)


def _publish_swallows(original: Any) -> Any:
    async def publish(self: Producer, messages: Any, conn: Any = None) -> Any:
        from holdfast.core.errors import StoreUnavailable
        from holdfast.stores.messages.publish import Published

        try:
            return await original(self, messages, conn)
        except StoreUnavailable:
            return [Published(message.id, True) for message in messages]

    return publish


def _without_key(original: Any) -> Any:
    def build(self: Producer, *args: Any, **options: Any) -> Any:
        return original(self, *args, **options | {"key": None})

    return build


def _lease_not_renewed(original: Any) -> Any:
    def renew(self: Lease) -> float | None:
        import time

        self._renewed_at = time.monotonic()
        return self._seconds / 4

    return renew


def _unconfirmed(original: Any) -> Any:
    async def send(self: RelayRunner, sender: Any, events: Any) -> Any:
        from holdfast.core.errors import BrokerUnavailable

        try:
            return await original(self, sender, events)
        except BrokerUnavailable:
            return []

    return send


def _never_again(original: Any) -> Any:
    def took(self: CostDelay, started: float, ended: float) -> None:
        self.at = float("inf")

    return took


def _gives_up(original: Any) -> Any:
    async def settle_all(self: Settler, batch: Any, *args: Any) -> Any:
        from holdfast.core.errors import StoreUnavailable

        try:
            return await original(self, batch, *args)
        except StoreUnavailable:
            return frozenset(ack.settlement.delivery_id for ack in batch), frozenset()

    return settle_all


_DELIVERED = "d.fence = json_extract(s.value, '$[1]') and d.locked_by = :worker"

BUGS: tuple[Bug, ...] = (
    Bug(
        "settle by id alone",
        (Replacement("settle_delivered", _DELIVERED), Replacement("settle", "fence = :fence and locked_by = :worker")),
    ),
    Bug("failure settled by id alone", (Replacement("settle", "fence = :fence and locked_by = :worker"),)),
    Bug(
        "complete without a claim",
        (Replacement("trigger holdfast_complete_insert", "where not exists", "where false and not exists"),),
    ),
    Bug("claim keeps the fence", (Replacement("taken", "fence = fence + 1", "fence = fence"),)),
    Bug("claim counts no attempt", (Replacement("taken", "attempts = attempts + 1", "attempts = attempts"),)),
    Bug("takeover of living workers", (Replacement("rescue", "and coalesce(w.alive_until < {now}, 1)", ""),)),
    Bug("takeover keeps the fence", (Replacement("rescue", "set fence = fence + 1,", "set"),)),
    Bug(
        "takeover before the lease ends",
        (Replacement("rescue", "d.lease_until < {now} and coalesce(w.alive_until < {now}, 1)"),),
    ),
    Bug(
        "claim before its time",
        (
            Replacement("discover_and_claim", "\n      and d.run_at <= {now}", ""),
            Replacement("claim", "\n    and d.run_at <= {now}", ""),
        ),
    ),
    Bug("claim of paused consumers", (Replacement("runnable", "c.paused_at is null"),)),
    Bug(
        "cancel of finished work",
        (
            Replacement("cancel", "and status in ('pending', 'in_flight')", ""),
            Replacement("lock_deliveries", "and d.status in (select value from json_each(:statuses))", ""),
        ),
    ),
    Bug(
        "cancel leaves the claim",
        (
            Replacement("cancel", "lease_until = null, locked_by = null,", ""),
            Replacement("cancel", "status = 'failed'", "status = status"),
            Replacement("cancel", "fence = fence + 1", "fence = fence"),
        ),
    ),
    Bug(
        "prune of unfinished work",
        (
            Replacement(
                "done",
                "(d.status = 'delivered' or (d.discarded_at is not null and d.error_type = 'superseded'))\nand d.completed_at < {now} - :older_than",
                "true",
            ),
            Replacement("prune_deliveries", "and d.id < :ceiling", ""),
        ),
    ),
    Bug(
        "limit not counted",
        (
            Replacement(
                "cap_limit",
                ", :most - (\n  select count(*) from (\n    select 1 from {hf}delivery f indexed by {hf}delivery_running\n    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer\n    limit :most))",
                ", :most",
            ),
        ),
    ),
    Bug("order by time", (Replacement("room_head", "when n.flow_seq > (", "when false and n.flow_seq > ("),)),
    Bug("two of a key at once", (Replacement("room_head", "when exists (", "when false and exists ("),)),
    Bug(
        "join after the first step",
        (Replacement("joined_steps", "t.occurrence = 0 and t.waiting = 0", "t.occurrence = 0"),),
    ),
    Bug(
        "join never starts",
        (Replacement("joined_steps", "t.occurrence = 0 and t.waiting = 0", "t.occurrence = 0 and t.waiting < 0"),),
    ),
    Bug(
        "step settled without its fence",
        (Replacement("advance", "and d.fence = s.fence and d.locked_by = :worker", ""),),
    ),
    Bug("acknowledged before the handler", install=_patching(DeliveryExecutor, "run", _acknowledged_first)),
    Bug("failure counts as success", install=_decided(lambda outcome: isinstance(outcome, Failed))),
    Bug(
        "cancelled run counts as success",
        install=_decided(lambda outcome: isinstance(outcome, Released) and outcome.started),
    ),
    Bug("dead one attempt early", install=_budget(-1)),
    Bug("one attempt too many", install=_budget(1)),
    Bug(
        "complete outside the transaction",
        install=_patching(Context, "_complete_sync", lambda original: lambda *args, **options: None),
    ),
    Bug("no takeover", install=_patching(Reaper, "_reap", _idle_reaper)),
    Bug("orphaned claims kept", install=_patching(OrphanedClaims, "scan", _no_scan)),
    Bug("notifications relied on", install=_patching(WorkerControl, "woken", _only_notified)),
    Bug("publish error swallowed", install=_patching(Producer, "publish", _publish_swallows)),
    Bug("key ignored", install=_patching(Producer, "build", _without_key)),
    Bug("lease never renewed", install=_patching(Lease, "renew", _lease_not_renewed)),
    Bug(
        "takeover counts an attempt",
        (Replacement("rescue", "set fence = fence + 1,", "set fence = fence + 1, attempts = attempts + 1,"),),
    ),
    Bug(
        "rate not counted",
        (
            Replacement(
                "cap_rate",
                ", :rate - (\n  select coalesce(sum(s.n), 0) from {hf}flow_start s\n  where s.consumer = :consumer and s.flow_key = '' and s.bucket > {now} - :rate_window - :grain)",
                ", :rate",
            ),
        ),
    ),
    Bug(
        "debounce runs the oldest call",
        (
            Replacement(
                "claim_debounced",
                "order by d.flow_seq desc limit 1) as newest_row",
                "order by d.flow_seq limit 1) as newest_row",
            ),
            Replacement(
                "claim_debounced",
                "order by d.flow_seq limit 1) as oldest_row",
                "order by d.flow_seq desc limit 1) as oldest_row",
            ),
        ),
    ),
    Bug("late consumer gets no earlier events", install=_patching(WorkerSession, "_catch_up", _no_scan)),
    Bug("epoch ignored", (Replacement("catch_up_scan", "l.sub_epoch < s.since_epoch", "false"),)),
    Bug("relay moves on without a confirmation", install=_patching(RelayRunner, "_send", _unconfirmed)),
    Bug(
        "rebuild does not hold the projector",
        (
            Replacement("hold_projector", "{now} + :hold", "{now}"),
            Replacement("hold_stands", "p.held_until > {now}"),
            Replacement("prolong_hold", "held_until > {now}"),
        ),
    ),
    # SQLite removes the index entries of claimed rows at once, so its claims use no floors.
    Bug("floor that only rises", install=_patching(CostDelay, "took", _never_again), only_on="postgres"),
    Bug("settlement given up after an error", install=_patching(Settler, "_settle_all", _gives_up)),
)
