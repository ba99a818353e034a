"""A consumer that registers while publishers are in flight misses nothing and gets nothing twice.

The interleavings are made on purpose: one thread holds many open transactions and takes their steps in a random
order, so that a seed gives the same run again (`HOLDFAST_SEED=… pytest …`). A second kind of test lets threads run
as they like.
"""

import asyncio
import os
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import psycopg
import pytest

from holdfast.core.change import Deliver
from holdfast.core.events.pattern import matches
from holdfast.stores.connections.connection import Psycopg, run_on
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.messages.fanout import Fanout, read_subscriptions
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.messages.publish import publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, register, retire
from holdfast.stores.operation import Operation, Query, Steps, operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.stores.concurrency.crowd import behind, callers, opened, together, until_waiting
from tests.support.builders import (
    age,
    all_deliveries,
    catch_up_fully,
    claim_all,
    message,
    outcome,
    put,
    register_consumers,
    sql,
)

pytestmark = pytest.mark.long

T = TypeVar("T")

TYPES = ("order.placed", "order.paid", "mail.sent")
PUBLISHERS = 6
STEPS = 60

_ROUNDS = [pytest.param(8, id="few"), pytest.param(500, id="many", marks=pytest.mark.soak)]


@pytest.mark.parametrize("rounds", _ROUNDS)
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_consumer_registered_while_publishers_are_in_flight_misses_nothing(
    postgres_place: Callable[[], PostgresStore], isolation: str, rounds: int
) -> None:
    first = int(os.environ.get("HOLDFAST_SEED", random.randrange(10**9)))
    with opened(postgres_place, 1) as (store,), ExitStack() as stack:
        connections = [
            stack.enter_context(psycopg.connect(store.conninfo, autocommit=True)) for _ in range(PUBLISHERS + 2)
        ]
        for seed in range(first, first + rounds):
            print(f"seed {seed}")
            Interleaving(store, connections, isolation, seed).run()
            sql(store, "truncate {hf}message, {hf}delivery, {hf}subscription, {hf}consumer cascade")


@dataclass
class Publisher:
    """A caller's transaction: what it wrote shares its fate."""

    connection: psycopg.Connection
    fanout: Fanout
    written: dict[UUID, str] = field(default_factory=dict)


@dataclass
class Registered:
    """A consumer, and the messages that were visible when its subscription became active."""

    patterns: tuple[str, ...]
    from_start: bool
    visible: frozenset[UUID]

    def wants(self, id: UUID, type: str) -> bool:
        return any(matches(p, type) for p in self.patterns) and (self.from_start or id not in self.visible)


class Interleaving:
    """One random run: publishers begin, look, write and end; consumers register; catch-ups pass by."""

    def __init__(self, store: PostgresStore, connections: list[psycopg.Connection], isolation: str, seed: int) -> None:
        self.store = store
        self.isolation = isolation
        self.random = random.Random(seed)
        self.registrar, self.repairer, *self.idle = connections
        self.open: list[Publisher] = []
        self.shared = Fanout()  # what a process keeps from one publish to the next
        self.committed: dict[UUID, str] = {}
        self.consumers: dict[str, Registered] = {}
        self.registering = False
        self.pruned: set[tuple[UUID, str]] = set()

    def run(self) -> None:
        steps = [self.begin, *[self.write] * 3, self.end, self.register, self.catch_up, self.deliver_and_prune]
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.finish_registering()
        while self.open:
            self.end()
        self.catch_up_to_the_end()
        there = self._deliveries()
        assert not there & self.pruned, "what was pruned has come back"
        for name, consumer in self.consumers.items():
            got = {id for id, consumer in there | self.pruned if consumer == name}
            assert got == {id for id, type in self.committed.items() if consumer.wants(id, type)}, name

    def begin(self) -> None:
        if not self.idle:
            return
        connection = self.idle.pop()
        connection.execute(f"begin isolation level {self.isolation}".encode())
        if self.random.random() < 0.5:
            connection.execute("select 1")  # repeatable read: the snapshot is taken here
        fanout = self.random.choice([self.shared, self.shared, Fanout()])
        if self.random.random() < 0.3:
            fanout = self._on(connection, _look())
        self.open.append(Publisher(connection, fanout))

    def write(self) -> None:
        if not self.open:
            return
        publisher = self.random.choice(self.open)
        new = [
            message(self.random.choice(TYPES), key=self.random.choice([None, f"key-{self.random.random()}"]))
            for _ in range(self.random.randrange(1, 4))
        ]
        published = self._on(publisher.connection, publish(new, publisher.fanout))
        assert all(one.created for one in published)
        publisher.written |= {one.id: one.type for one in new}

    def end(self) -> None:
        if not self.open:
            return
        publisher = self.open.pop(self.random.randrange(len(self.open)))
        if self.random.random() < 0.75:
            publisher.connection.execute("commit")
            self.committed |= publisher.written
        else:
            publisher.connection.execute("rollback")
        self.idle.append(publisher.connection)

    def register(self) -> None:
        """Registers a consumer, in a transaction that may stay open while others continue."""
        if self.registering:
            self.finish_registering()
            return
        patterns = self.random.choice([("order.*",), ("*",), ("order.placed",), ("order.*", "order.placed")])
        from_start = self.random.random() < 0.6
        name = f"c{len(self.consumers)}"
        self.registrar.execute("begin")
        self._on(
            self.registrar, register([Declaration(name)], [EventSubscription(p, name, from_start) for p in patterns], 0)
        )
        self.consumers[name] = Registered(patterns, from_start, frozenset(self.committed))
        self.registering = True
        if self.random.random() < 0.5:
            self.finish_registering()

    def finish_registering(self) -> None:
        if self.registering:
            self.registrar.execute("commit")
            self.registering = False

    def catch_up(self) -> None:
        if not self.registering:  # it would wait for the registrar, and this is one thread
            with self.repairer.transaction():
                self._on(self.repairer, catch_up())

    def deliver_and_prune(self) -> None:
        """Everything that waits is done, and deleted at once. No test waits for days, but a transaction may."""
        before = self._deliveries()
        sql(self.store, "update {hf}delivery set status = 'delivered', completed_at = now() where status = 'pending'")
        with self.repairer.transaction():
            self._on(self.repairer, prune_deliveries(FROM_THE_START, UUID(int=2**128 - 1), -timedelta(hours=1)))
        self.pruned |= before - self._deliveries()

    def catch_up_to_the_end(self) -> None:
        while behind(self.store):
            self.catch_up()

    def _on(self, connection: psycopg.Connection, wanted: Operation[T]) -> T:
        return run_on(wanted, self.store.dialect, Psycopg(connection))

    def _deliveries(self) -> set[tuple[UUID, str]]:
        rows = sql(self.store, "select message_id, consumer from {hf}delivery")
        assert len(rows) == len(set(rows))
        return set(rows)  # type: ignore[arg-type]


@operation
def _look() -> Steps[Fanout]:
    """What a process would load at its start."""
    return Fanout(read_subscriptions((yield Query("subscriptions"))))


def test_consumers_that_register_among_busy_publishers_get_each_message_once(place: Callable[[], Store]) -> None:
    """Threads in random order: publishers with separate lists, registrars, and three that catch up all the time."""
    names = [f"c{n}" for n in range(6)]
    over = threading.Event()
    ends = iter(range(8))

    def publish_all(store: Store) -> list[UUID]:
        fanout = Fanout()
        published = []
        for n in range(40):
            (one,) = store.run_sync(publish([message(TYPES[n % 2])], fanout))
            published.append(one.id)
        return published

    def register_all(store: Store, mine: list[str]) -> list[UUID]:
        for name in mine:
            store.run_sync(
                register([Declaration(name)], [EventSubscription("*", name), EventSubscription("order.*", name)], 0)
            )
        return []

    def catch_up_all_the_while(store: Store) -> list[UUID]:
        while not over.is_set():
            store.run_sync(catch_up())
        return []

    def noted(call: Callable[[], list[UUID]]) -> Callable[[], list[UUID]]:
        def run() -> list[UUID]:
            try:
                return call()
            finally:
                if next(ends) == 7:
                    over.set()

        return run

    with opened(place, 11) as stores:
        work: list[Callable[[], list[UUID]]] = [
            *(noted(partial(publish_all, s)) for s in stores[:6]),
            *(noted(partial(register_all, s, names[n::2])) for n, s in enumerate(stores[6:8])),
            *(partial(catch_up_all_the_while, s) for s in stores[8:]),
        ]
        published = together(work)
        store = stores[0]
        ids = sorted(id for some in published for id in some)
        while behind(store):
            store.run_sync(catch_up())
        for name in names:
            got = sql(store, f"select message_id from {{hf}}delivery where consumer = '{name}'")
            assert sorted(UUID(str(row[0])) for row in got) == ids, name


@pytest.mark.parametrize("default", ["read committed", "repeatable read", "serializable"])
async def test_registrations_wait_for_each_other_so_that_epochs_appear_in_order(
    postgres_store: PostgresStore, default: str
) -> None:
    """With one epoch twice, a publisher that loaded its list between the two would never look for the second."""
    store = postgres_store
    (name,) = sql(store, "select current_database()")[0]
    sql(store, f"alter database {name} set default_transaction_isolation = '{default}'")
    try:
        async with callers(store, 1) as (first,):
            await first.connection.execute("begin")
            await first.run(register([Declaration("a")], [EventSubscription("*", "a")], 0))
            waiting = asyncio.create_task(store.run(register([Declaration("b")], [EventSubscription("*", "b")], 0)))
            blocked = asyncio.create_task(until_waiting(store, 1))
            await asyncio.wait([waiting, blocked], return_when=asyncio.FIRST_COMPLETED)
            await first.connection.execute("commit")
            await waiting
            blocked.cancel()
        assert sql(store, "select consumer, epoch from {hf}subscription order by consumer") == [("a", 1), ("b", 2)]
    finally:
        sql(store, f"alter database {name} reset default_transaction_isolation")


async def test_what_was_pruned_does_not_come_back_with_a_subscription_that_does(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.*"]})
    await put(store, message())
    await _deliver_all(store)
    assert await _prune(store) == 1
    await store.run(retire("order.*", "billing"))
    (missed,) = await put(store, message())
    await register_consumers(store, {"billing": ["order.*"]})
    assert await catch_up_fully(store) == 1
    assert [d.message_id for d in await all_deliveries(store)] == [missed.id]


async def test_nothing_is_pruned_before_what_came_earlier_is_caught_up(store: Store) -> None:
    """A prune mark hides what is older: set too early it would hide messages that are not delivered yet."""
    (early,) = await put(store, message())
    await register_consumers(store, {"billing": ["order.*"]})
    await put(store, message())
    await _deliver_all(store)
    assert await _prune(store) == 0
    assert await catch_up_fully(store) == 1
    assert await _prune(store) == 1
    assert [d.message_id for d in await all_deliveries(store)] == [early.id]


async def test_a_new_queue_or_policy_gives_nothing_again(store: Store) -> None:
    """Publishers load their lists again, but have already written what they knew."""
    await register_consumers(store, {"billing": ["order.*"]})
    await put(store, message())
    await _deliver_all(store)
    assert await _prune(store) == 1
    await register_consumers(store, {"billing": ["order.*"]}, queue="payments")
    assert await catch_up_fully(store) == 0


async def test_a_publisher_with_an_old_list_sends_nothing_to_an_unread_lane(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"], "mail": ["*"]}, queue="old")
    fanout = Fanout()
    await put(store, fanout=fanout)
    await store.run(retire("*", "mail"))
    await register_consumers(store, {"billing": ["*"], "audit": ["*"]}, queue="new")
    await put(store, message(), message(key="k"), fanout=fanout)
    assert sorted((d.consumer, d.queue) for d in await all_deliveries(store)) == [
        ("audit", "new"),
        ("audit", "new"),
        ("billing", "new"),
        ("billing", "new"),
    ]


async def _deliver_all(store: Store) -> None:
    claimed = await claim_all(store)
    await store.run(settle("w1", [outcome(one, Deliver()) for one in claimed]))
    age(store, timedelta(hours=2), "delivery")


async def _prune(store: Store) -> int:
    removed, cursor = await store.run(prune_deliveries(FROM_THE_START, UUID(int=2**128 - 1), timedelta(hours=1)))
    assert cursor is None
    return removed
