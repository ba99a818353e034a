"""Random lives of a store, compared step by step with a model of the lifecycle in plain Python."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.change import Block, Change, DeadLetter, Deliver, Discard, Park, Postpone, Release, Retry
from holdfast.core.delivery import Claim
from holdfast.core.errors import KeyConflict, LeaseLost, NotFound, Refused
from holdfast.core.failures.report import LEASE_EXPIRED, ErrorReport
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.retry import RetryPolicy
from holdfast.stores.admin.actions import (
    block_consumer,
    cancel,
    discard,
    pause_consumer,
    pause_queue,
    replay,
    resume_consumer,
    resume_queue,
    unblock_consumer,
)
from holdfast.stores.deliveries.claim import claim, discover_and_claim, lanes, rescue
from holdfast.stores.deliveries.settle import ClaimState, Settlement, claim_states, complete, settle
from holdfast.stores.deliveries.worker import renew_worker, start_worker, stop_worker
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries, prune_messages
from holdfast.stores.messages.publish import publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, register, retire
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.stores.model import Conflict, Delivery, Model

pytestmark = pytest.mark.long

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=1)
NOW = timedelta(0)
BOOM = ErrorReport("ValueError", "boom", "trace", "fingerprint")

CONSUMERS = ("billing", "mail", "audit")
PATTERNS = ("order.*", "order.placed", "*")
TYPES = ("order.placed", "order.paid", "mail.sent")
QUEUES = ("default", "slow")
TABLES = ("delivery", "message", "run", "subscription", "consumer", "queue", "worker", "audit")
# Few deliveries that much happens to tell more than many.
FEW = 10
END = UUID(int=2**128 - 1)

CHANGES: tuple[tuple[Change, ErrorReport | None], ...] = (
    *[(Deliver(), None)] * 4,
    *[(Retry(NOW), BOOM)] * 2,
    (Retry(HOUR), BOOM),
    *[(Retry(NOW), LEASE_EXPIRED)] * 3,
    (Postpone(NOW), None),
    (Postpone(HOUR), None),
    (Release(NOW, held=False), None),
    (Release(NOW, held=True), None),
    (Release(HOUR, held=True), None),
    (Park("endpoint", HOUR, None), BOOM),
    (Park("endpoint", None, datetime(2020, 1, 1, tzinfo=UTC)), BOOM),
    (Block("database", HOUR, held=True), BOOM),
    (Block("database", NOW, held=False), BOOM),
    *[(DeadLetter(), BOOM)] * 4,
    (Discard("not wanted"), None),
)

changes = st.sampled_from(CHANGES)
picks = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)
consumers = st.sampled_from(CONSUMERS)
generations = st.integers(0, 1)


class Hand(Protocol):
    """A connection of the test's own, to move stored times and to empty tables."""

    def execute(self, text: Any, /) -> Any: ...


# One rule that chooses among weighted steps, and not a rule for each: Hypothesis leaves half of the rules out of an
# example, and a life without claims, or without failures, shows little.
STEPS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {}

steps = st.deferred(
    lambda: st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name][1]))
    )
)


def step(weight: int, /, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """Makes a method a step of a life; the weight says how often it is chosen."""

    def decorate(method: F) -> F:
        STEPS[method.__name__] = weight, arguments
        return method

    return decorate


class Lives(RuleBasedStateMachine):
    """Every step does the same to the store and to the model, and then the two are compared."""

    def __init__(self, store: Store, hand: Hand) -> None:
        super().__init__()
        self.store, self.hand = store, hand
        self.model = Model()
        self.claims: list[Claim] = []
        self.fanouts: dict[int, Fanout] = {}
        self.fences: dict[UUID, int] = {}
        self.published = 0
        self.agreed = False
        for table in TABLES:
            self._sql(f"delete from {{hf}}{table}")

    @rule(step=steps)
    def live(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        self.agreed = False
        getattr(self, name)(**arguments)

    # Publishing

    @step(4, type=st.sampled_from(TYPES), generation=generations, list=st.integers(0, 1), size=st.integers(1, 3))
    def publish_events(self, type: str, generation: int, list: int, size: int) -> None:
        self._publish([self._message(type, generation) for _ in range(size)], list)

    @step(1, type=st.sampled_from(TYPES), key=st.sampled_from("ab"), content=st.integers(0, 1), list=st.integers(0, 1))
    def publish_with_a_key(self, type: str, key: str, content: int, list: int) -> None:
        self._publish([self._message(type, 0, key=key, payload={"content": content}), self._message(type, 0)], list)

    @step(2, consumer=consumers, queue=st.sampled_from(QUEUES), priority=st.integers(0, 3), later=st.booleans())
    def publish_a_job(self, consumer: str, queue: str, priority: int, later: bool) -> None:
        delay = HOUR if later else None
        to = Address(consumer=consumer, queue=queue, priority=priority, delay=delay, max_attempts=3)
        job = self._message("order.placed", 0, addressed=[to])
        self._publish([job], 0)
        for id in self._ids(job):
            self.model.deliveries[id].due = not later

    @step(3, unique=st.sampled_from("xxy"), list=st.integers(0, 1))
    def publish_a_unique_job(self, unique: str, list: int) -> None:
        self._publish([self._message("job", 0, addressed=[Address(consumer="mail", unique=unique)])], list)

    # The registry

    @step(
        2,
        consumer=consumers,
        patterns=st.sets(st.sampled_from(PATTERNS), min_size=1, max_size=2),
        queue=st.sampled_from(QUEUES),
        attempts=st.integers(3, 4),
        from_start=st.booleans(),
        generation=generations,
    )
    def register(
        self, consumer: str, patterns: set[str], queue: str, attempts: int, from_start: bool, generation: int
    ) -> None:
        declared = Declaration(consumer, queue, 1, RetryPolicy.fixed(1, attempts=attempts))
        wished = [EventSubscription(pattern, consumer, from_start) for pattern in sorted(patterns)]
        changed = self._run(register([declared], wished, generation))
        assert changed == self.model.register(consumer, queue, 1, attempts, sorted(patterns), from_start, generation)

    @step(1, consumer=consumers, pattern=st.sampled_from(PATTERNS))
    def retire(self, consumer: str, pattern: str) -> None:
        assert self._found(retire(pattern, consumer)) == self.model.retire(pattern, consumer)

    @step(4)
    def catch_up(self) -> None:
        added = 0
        while True:
            some, more = self._run(catch_up())
            added += some
            if not more and not self._behind():
                break
        assert added == self.model.catch_up()

    # Workers

    @initialize(worker=st.integers(0, 1), consumer=consumers)
    def begin_with_a_worker_and_a_consumer(self, worker: int, consumer: str) -> None:
        self.worker(worker, "start")
        self.register(consumer, {"order.*"}, "default", 3, True, 0)

    @step(1, worker=st.integers(0, 1), action=st.sampled_from(["start", "renew", "stop"]))
    def worker(self, worker: int, action: str) -> None:
        name = f"w{worker}"
        known = name in self.model.workers
        if action == "renew":
            assert self._run(renew_worker(name, LEASE)) == self.model.renew(name)
        elif action == "stop":
            self._run(stop_worker(name))
            self.model.workers.pop(name, None)
        elif known:
            with pytest.raises(Refused):
                self._run(start_worker(name, worker, QUEUES, CONSUMERS, LEASE))
        else:
            self._run(start_worker(name, worker, QUEUES, CONSUMERS, LEASE))
            self.model.start(name, worker)

    @step(
        4,
        worker=st.integers(0, 1),
        limit=st.integers(1, 4),
        suspects=st.sampled_from([False, False, True]),
        discover=st.booleans(),
    )
    def claim(self, worker: int, limit: int, suspects: bool, discover: bool) -> None:
        if discover:
            claimed = self._run(discover_and_claim(CONSUMERS, worker, f"w{worker}", LEASE, limit, suspects=suspects))
        else:
            found = [lane for lane in self._run(lanes(CONSUMERS, worker, suspects=suspects)) if not lane.blocked]
            claimed = self._run(claim(found, f"w{worker}", LEASE, limit, suspects=suspects))
        allowed = self.model.claimable(worker, suspects)
        ids = [one.id for one in claimed]
        assert len(ids) == len(set(ids)) == min(limit, len(allowed))
        assert set(ids) <= {d.id for d in allowed}
        # In every case the first lanes are emptied first.
        assert sorted(self.model.deliveries[id].lane for id in ids) == [d.lane for d in allowed[: len(ids)]]
        for one in claimed:
            mine = self.model.claim(one.id, f"w{worker}")
            assert (one.fence, one.attempts) == (mine.fence, self.model.deliveries[one.id].attempts)
            self.claims.append(mine)

    @step(2, reaper=st.integers(0, 1), limit=st.integers(1, 3))
    def rescue(self, reaper: int, limit: int) -> None:
        allowed = {d.id for d in self.model.forsaken()}
        taken = self._run(rescue(f"w{reaper}", LEASE, limit))
        ids = {one.claimed.id for one in taken}
        assert len(taken) == len(ids) == min(limit, len(allowed))
        assert ids <= allowed
        self.claims += [self.model.take_over(id, f"w{reaper}") for id in sorted(ids)]

    @step(5, worker=st.integers(0, 1), limit=st.integers(1, 4), change=changes, expired=st.booleans())
    def claim_and_settle(
        self, worker: int, limit: int, change: tuple[Change, ErrorReport | None], expired: bool
    ) -> None:
        before = len(self.claims)
        self.claim(worker, limit, False, expired)
        self._settle(self.claims[before:], change, expired=expired)

    @step(2, worker=st.integers(0, 1), suspects=st.booleans())
    def fail_everything(self, worker: int, suspects: bool) -> None:
        before = len(self.claims)
        self.claim(worker, 50, suspects, True)
        self._settle(self.claims[before:], (DeadLetter(), BOOM))

    @step(2, worker=st.integers(0, 1), reaper=st.integers(0, 1), limit=st.integers(1, 4), change=changes)
    def die_and_be_taken_over(
        self, worker: int, reaper: int, limit: int, change: tuple[Change, ErrorReport | None]
    ) -> None:
        """A worker that is silent for hours; afterwards it comes back and settles what it had."""
        before = len(self.claims)
        self.claim(worker, limit, False, False)
        mine = self.claims[before:]
        self.let_time_pass(set())
        self.rescue(reaper, limit)
        self._settle(mine, change)

    @step(2, worker=st.integers(0, 1), limit=st.integers(1, 4), change=changes)
    def claim_again_and_settle_the_first_claim(
        self, worker: int, limit: int, change: tuple[Change, ErrorReport | None]
    ) -> None:
        before = len(self.claims)
        self.claim(worker, limit, False, False)
        first = self.claims[before:]
        self._settle(first, (Release(NOW, held=False), None))
        self.claim(worker, limit, False, False)
        self._settle(first, change)

    @step(4, chosen=picks, change=changes, keep_run=st.booleans(), expired=st.booleans(), suspect=st.booleans())
    def settle(
        self,
        chosen: list[int],
        change: tuple[Change, ErrorReport | None],
        keep_run: bool,
        expired: bool,
        suspect: bool,
    ) -> None:
        """Settles claims that are mostly alive."""
        if self.claims:
            some = self._pick(self.claims, chosen, [one for one in self.claims if self.model.holds(one)])
            self._settle([one for one in some if one.worker == some[0].worker], change, keep_run, expired, suspect)

    @step(2, chosen=picks, change=changes)
    def settle_too_late(self, chosen: list[int], change: tuple[Change, ErrorReport | None]) -> None:
        """Settles claims of a worker that has lost them, and mostly holds the same deliveries again."""
        lost = [one for one in self.claims if not self.model.holds(one)]
        if lost:
            owners = {d.id: d.owner for d in self.model.deliveries.values()}
            some = self._pick(lost, chosen, [one for one in lost if owners.get(one.delivery_id) == one.worker])
            self._settle([one for one in some if one.worker == some[0].worker], change)

    @step(2, chosen=picks)
    def complete(self, chosen: list[int]) -> None:
        if not self.claims:
            return
        mine = self._pick(self.claims, chosen, [one for one in self.claims if self.model.holds(one)])[0]
        try:
            self._run(complete(mine, HOUR))
        except LeaseLost:
            assert not self.model.holds(mine)
        else:
            assert self.model.complete(mine)

    # Operators

    @step(3, chosen=st.none() | picks, rerun=st.booleans(), generation=st.sampled_from([None, 0, 1]))
    def replay(self, chosen: list[int] | None, rerun: bool, generation: int | None) -> None:
        """Replays some, mostly such as can be, or all that there are."""
        if chosen is None:
            ids = [*self.model.deliveries]
        else:
            ids = self._choose(chosen, lambda d: d.dead or (rerun and d.status == "delivered"))
        replayed = self._run(replay(ids, "ada", "again", generation, rerun=rerun))
        assert [one.id for one in replayed] == self.model.replay(ids, generation, rerun)
        for one in replayed:
            d = self.model.deliveries[one.id]
            assert (one.consumer, one.generation, one.fence) == (d.consumer, d.generation, d.fence)

    @step(1, chosen=picks)
    def discard(self, chosen: list[int]) -> None:
        ids = self._choose(chosen, lambda d: d.dead)[-3:]
        assert self._run(discard(ids, "ada", None)) == self.model.discard(ids)

    @step(1, chosen=picks, reason=st.sampled_from([None, "a mistake"]))
    def cancel(self, chosen: list[int], reason: str | None) -> None:
        ids = self._choose(chosen, lambda d: d.open)[-2:]
        assert self._run(cancel(ids, "ada", reason)) == self.model.cancel(ids, reason)

    @step(1, consumer=consumers, queue=st.sampled_from(QUEUES), what=st.integers(0, 2), hold=st.booleans())
    def hold_or_let_go(self, consumer: str, queue: str, what: int, hold: bool) -> None:
        """Pauses or resumes a queue or a consumer, or blocks or unblocks a consumer."""
        model = self.model
        match what, hold:
            case 0, True:
                self._run(pause_queue(queue, "ada", None))
                model.pause_queue(queue)
            case 0, False:
                assert self._run(resume_queue(queue, "ada", None)) == model.resume_queue(queue)
            case 1, True:
                assert self._found(pause_consumer(consumer, "ada", None)) == model.pause_consumer(consumer)
            case 1, False:
                assert self._run(resume_consumer(consumer, "ada", None)) == model.resume_consumer(consumer)
            case _, True:
                assert self._found(block_consumer(consumer, "database", HOUR, "ada")) == model.block_consumer(consumer)
            case _:
                assert self._run(unblock_consumer(consumer, "ada")) == model.unblock_consumer(consumer)

    @step(3, renewing=st.sets(st.integers(0, 1)))
    def let_time_pass(self, renewing: set[int]) -> None:
        """Two hours: everything is due, every lease is past but for those that are renewed, what is done is old."""
        amount = "interval '2 hours'" if isinstance(self.store, PostgresStore) else "7200000"
        for table, columns in (
            ("delivery", ("run_at", "created_at", "completed_at", "lease_until", "discarded_at")),
            ("message", ("occurred_at",)),
            ("worker", ("alive_until",)),
            ("consumer", ("blocked_until",)),
        ):
            self._sql(f"update {{hf}}{table} set " + ", ".join(f"{c} = {c} - {amount}" for c in columns))
        self.model.let_time_pass()
        for worker in sorted(renewing):
            self.worker(worker, "renew")

    @step(1, discarded=st.booleans(), messages_too=st.booleans())
    def prune(self, discarded: bool, messages_too: bool) -> None:
        gone = self._run(prune_deliveries(FROM_THE_START, END, HOUR, discarded=discarded))
        assert gone == (self.model.prune(discarded=discarded), None)
        if messages_too:
            assert self._run(prune_messages(FROM_THE_START, END, HOUR)) == (self.model.prune_messages(), None)

    @step(2, worker=st.integers(0, 1), discarded=st.booleans(), messages_too=st.booleans())
    def finish_and_prune(self, worker: int, discarded: bool, messages_too: bool) -> None:
        before = len(self.claims)
        self.claim(worker, 50, False, True)
        self._settle(self.claims[before:], (Discard("not wanted") if discarded else Deliver(), None))
        self.let_time_pass({worker})
        self.prune(discarded, messages_too)

    # What must hold at every step

    @invariant()
    def store_and_model_agree(self) -> None:
        now = self._now()
        listed = [found.delivery for found in self._run(deliveries(Filter(), limit=1000))]
        assert len({(d.message_id, d.consumer) for d in listed}) == len(listed)
        runs = dict(self._sql("select delivery_id, count(*) from {hf}run group by delivery_id"))
        runs = {UUID(str(id)): count for id, count in runs.items()}
        seen = {}
        for d in listed:
            assert (d.status.value == "in_flight") == (d.locked_by is not None)
            assert d.fence >= self.fences.get(d.id, 0)
            self.fences[d.id] = d.fence
            seen[d.id] = {
                "message_id": d.message_id,
                "consumer": d.consumer,
                "queue": d.queue,
                "priority": d.priority,
                "generation": d.generation,
                "max_attempts": d.max_attempts,
                "status": d.status.value,
                "due": d.run_at <= now,
                "attempts": d.attempts,
                "fence": d.fence,
                "owner": d.locked_by,
                "leased": d.lease_until is not None and d.lease_until > now,
                "suspect": d.suspect,
                "holds": d.holds,
                "expiries": d.expiries,
                "history": len(d.failure_history),
                "error": d.last_error,
                "failed_before": d.first_failed_at is not None,
                "ended": d.completed_at is not None,
                "discarded": d.discarded_at is not None,
                "runs": runs.get(d.id, 0),
            }
        assert seen == self.model.shown()
        self.agreed = True

    def teardown(self) -> None:
        if not self.agreed:  # a step has failed already, and says it better
            return
        counted = {(c.consumer, c.queue, c.state): c.count for c in self._run(counts())}
        assert counted == self.model.counted()
        assert int(self._sql("select count(*) from {hf}audit")[0][0]) == self.model.audited
        owned = self._run(claim_states(self.claims))
        for one in {one.delivery_id: one for one in self.claims}.values():
            d = self.model.deliveries.get(one.delivery_id)
            expected = ClaimState.LOST
            if d is not None and d.fence == one.fence:
                expected = {one.worker: ClaimState.HELD, None: ClaimState.SETTLED}.get(d.owner, ClaimState.LOST)
            assert owned[one.delivery_id] is expected

    # Small parts

    def _run(self, operation: Any) -> Any:
        return self.store.run_sync(operation)

    def _found(self, operation: Any) -> bool:
        try:
            self._run(operation)
        except NotFound:
            return False
        return True

    def _publish(self, batch: list[NewMessage], number: int) -> None:
        if len(self.model.deliveries) > FEW:
            return
        fanout = self.fanouts.setdefault(number, Fanout())
        try:
            expected = self.model.publish(batch, number)
        except Conflict:
            with pytest.raises(KeyConflict):
                self._run(publish(batch, fanout))
        else:
            assert [tuple(one) for one in self._run(publish(batch, fanout))] == expected

    def _message(
        self,
        type: str,
        generation: int,
        key: str | None = None,
        payload: object = None,
        addressed: Sequence[Address] = (),
    ) -> NewMessage:
        """A message whose id follows from its number alone, so that a run can be repeated exactly."""
        self.published += 1
        return new_message(
            id=uuid7(1_700_000_000_000 + self.published, 0),
            type=type,
            source="shop",
            payload=payload,
            key=key,
            generation=generation,
            addressed=addressed,
        )

    def _ids(self, message: NewMessage) -> list[UUID]:
        return [d.id for d in self.model.deliveries.values() if d.message_id == message.id]

    def _settle(
        self,
        claims: list[Claim],
        change: tuple[Change, ErrorReport | None],
        keep_run: bool = False,
        expired: bool = False,
        suspect: bool = False,
    ) -> None:
        what, error = change
        ran_out = error is LEASE_EXPIRED
        settlements = [
            Settlement(
                delivery_id=one.delivery_id,
                fence=one.fence,
                change=what,
                outcome="unknown",
                error=error,
                expired=ran_out and expired,
                suspect=ran_out and suspect,
                keep_run=keep_run,
            )
            for one in {one.delivery_id: one for one in claims}.values()
        ]
        if settlements:
            worker = claims[0].worker
            settled = self._run(settle(worker, settlements))
            assert settled == {s.delivery_id for s in settlements if self.model.settle(worker, s)}

    def _choose(self, chosen: list[int], wanted: Callable[[Delivery], bool]) -> list[UUID]:
        """Some deliveries, mostly such as are wanted, and one that does not exist."""
        known = sorted(self.model.deliveries)
        ids = self._pick(known, chosen, [id for id in known if wanted(self.model.deliveries[id])]) if known else []
        return [END, *dict.fromkeys(ids)]

    @staticmethod
    def _pick(items: list[T], chosen: list[int], better: list[T]) -> list[T]:
        """As many as chosen: three of four from the better ones, if there are any."""
        return [
            source[number % len(source)] for number in chosen if (source := better if better and number % 4 else items)
        ]

    def _behind(self) -> bool:
        """PostgreSQL reads the log up to the oldest transaction that runs, and autovacuum's is one of them."""
        if not isinstance(self.store, PostgresStore):
            return False
        late = "mark_tx <= (select max(tx) from {hf}message)"
        return bool(self._sql(f"select 1 from {{hf}}subscription where retired_at is null and {late}"))

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=1)

    def _sql(self, text: str) -> Any:
        cursor = self.hand.execute(text.replace("{hf}", self.store.dialect.prefix))  # type: ignore[attr-defined]
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["sqlite", "postgres18", pytest.param("postgres16", marks=pytest.mark.soak)])
def life(
    request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[tuple[Store, Hand]]:
    """A store, and a hand that can reach behind it. One database for all lives: each begins by emptying it."""
    if request.param == "sqlite":
        path = tmp_path / "holdfast.db"
        sqlite = SqliteStore(path)
        sqlite.migrate()
        hand = sqlite3.connect(path, isolation_level=None)
        yield sqlite, hand
        hand.close()
        sqlite.close_sync()
    else:
        postgres = PostgresStore(database(request.getfixturevalue(request.param)))
        with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
            yield postgres, connection
            for table in TABLES:
                connection.execute(f"delete from holdfast.{table}".encode())
        postgres.close_sync()


# A failure is shown as it was found: making it smaller takes minutes. `make soak` takes them.
_SHORT = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
_LONG = settings(_SHORT, max_examples=1000, stateful_step_count=200, phases=[*_SHORT.phases, Phase.shrink])


@pytest.mark.parametrize(
    "limits", [pytest.param(_SHORT, id="short"), pytest.param(_LONG, id="long", marks=pytest.mark.soak)]
)
def test_random_lives_agree_with_the_model(life: tuple[Store, Hand], limits: settings) -> None:
    def make() -> Lives:
        return Lives(*life)

    run_state_machine_as_test(make, settings=limits)  # type: ignore[arg-type]
