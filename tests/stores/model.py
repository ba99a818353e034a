"""The lifecycle in plain Python: what the stores must do, without a database, a clock or a thread.

Time is a flag: `let_time_pass` makes everything that waits due, every lease past and everything done old. Where a
store is free to choose (which of many due deliveries a claim takes), the model says what it may choose from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.core.change import Block, Deliver, Discard, Park, Postpone, Release, Retry
from holdfast.core.change import DeadLetter as Dead
from holdfast.core.delivery import FAILURE_HISTORY_LIMIT, Claim
from holdfast.core.events.pattern import matches
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.stores.deliveries.settle import Settlement

ADDRESSED = 2**63 - 1


@dataclass
class Delivery:
    """Everything of a delivery that an operator can see, times as flags."""

    id: UUID
    message_id: UUID
    consumer: str
    queue: str
    priority: int
    generation: int
    max_attempts: int | None = None
    unique: str | None = None
    status: str = "pending"
    due: bool = True
    attempts: int = 0
    fence: int = 0
    owner: str | None = None
    leased: bool = False
    suspect: bool = False
    holds: int = 0
    expiries: int = 0
    history: int = 0
    error: str | None = None
    failed_before: bool = False
    discarded: bool = False
    old: bool = False
    runs: int = 0

    @property
    def dead(self) -> bool:
        return self.status == "failed" and not self.discarded

    @property
    def open(self) -> bool:
        return self.status in ("pending", "in_flight")

    @property
    def lane(self) -> tuple[int, str, str, int]:
        return self.priority, self.queue, self.consumer, self.generation


@dataclass
class Message:
    id: UUID
    type: str
    key: str | None
    payload: str
    generation: int
    known_to: int  # the epoch of its publisher's list
    place: int
    old: bool = False


@dataclass
class Consumer:
    queue: str
    priority: int
    attempts: int
    generation: int
    paused: bool = False
    blocked: bool = False
    pruned_to: UUID | None = None


@dataclass
class Subscription:
    epoch: int  # of the list that shows it as it is
    since: int  # of the first list that had it
    mark: int
    resumed: int
    active: bool = True


@dataclass
class Worker:
    generation: int
    alive: bool = True


class Conflict(Exception):
    """The key is taken by other content."""


@dataclass
class Model:
    messages: dict[UUID, Message] = field(default_factory=dict)
    deliveries: dict[UUID, Delivery] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], Subscription] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    paused_queues: set[str] = field(default_factory=set)
    lists: dict[int, int] = field(default_factory=dict)  # publishers' lists: the epoch of each
    written: int = 0
    audited: int = 0

    # Publishing

    def publish(self, batch: Sequence[NewMessage], number: int) -> list[tuple[UUID, bool]]:
        """Publishes from the list of that number; raises before anything has changed but that list."""
        epoch = self.lists.setdefault(number, self.epoch)
        for m in batch:
            first = self._by_key(m.key)
            if first is not None and (first.type, first.payload) != (m.type, m.payload):
                raise Conflict
        answers, created = [], []
        for m in batch:
            (unique,) = {a.unique for a in m.addressed} or {None}
            held = self._holder(m.addressed[0].consumer, unique) if unique else None
            first = self._by_key(m.key)
            if held is not None or first is not None:
                answers.append((held.message_id if held else first.id if first else m.id, False))
                continue
            self.written += 1
            known_to = ADDRESSED if m.addressed else epoch
            self.messages[m.id] = Message(m.id, m.type, m.key, m.payload, m.generation, known_to, self.written)
            for a in m.addressed:
                self._add(m.id, a.consumer, a.queue, a.priority, m.generation, a.max_attempts, a.unique)
            if not m.addressed:
                # With any earlier list, what is written is what the registry says now.
                self._fan_out(self.messages[m.id])
            answers.append((m.id, True))
            if not unique:
                created.append(m)
        alone = len(batch) == 1 and len(batch[0].addressed) == 1 and batch[0].key is None
        if created and not alone:  # what is addressed and comes alone needs no list, and does not look at it
            self.lists[number] = self.epoch
        return answers

    def _fan_out(self, m: Message) -> None:
        for (pattern, name), s in self.subscriptions.items():
            if s.active and matches(pattern, m.type):
                c = self.consumers[name]
                self._add(m.id, name, c.queue, c.priority, max(m.generation, c.generation))

    def _add(
        self,
        message_id: UUID,
        consumer: str,
        queue: str,
        priority: int,
        generation: int,
        max_attempts: int | None = None,
        unique: str | None = None,
    ) -> bool:
        id = delivery_id(message_id, consumer)
        if id in self.deliveries:
            return False
        self.deliveries[id] = Delivery(id, message_id, consumer, queue, priority, generation, max_attempts, unique)
        return True

    def _by_key(self, key: str | None) -> Message | None:
        return next((m for m in self.messages.values() if key is not None and m.key == key), None)

    def _holder(self, consumer: str, unique: str | None) -> Delivery | None:
        same = (d for d in self.deliveries.values() if d.consumer == consumer and d.unique == unique and d.open)
        return next(same, None) if unique is not None else None

    # The registry

    @property
    def epoch(self) -> int:
        return max((s.epoch for s in self.subscriptions.values()), default=0)

    def register(
        self,
        name: str,
        queue: str,
        priority: int,
        attempts: int,
        patterns: Iterable[str],
        from_start: bool,
        generation: int,
    ) -> bool:
        epoch = self.epoch + 1
        known = self.consumers.get(name)
        changed = known is None or (known.queue, known.priority, known.attempts) != (queue, priority, attempts)
        added = [p for p in patterns if not ((s := self.subscriptions.get((p, name))) and s.active)]
        if known is None:
            self.consumers[name] = Consumer(queue, priority, attempts, generation)
        elif changed:
            known.queue, known.priority, known.attempts = queue, priority, attempts
            for (_, consumer), s in self.subscriptions.items():
                if consumer == name:
                    s.epoch = epoch
        for pattern in added:
            if s := self.subscriptions.get((pattern, name)):
                s.active, s.epoch, s.since, s.resumed = True, epoch, epoch, self.written
            else:
                self.subscriptions[pattern, name] = Subscription(
                    epoch, epoch, 0 if from_start else self.written, self.written
                )
        return changed or bool(added)

    def retire(self, pattern: str, name: str) -> bool:
        s = self.subscriptions.get((pattern, name))
        if s is None or not s.active:
            return False
        s.epoch, s.active = self.epoch + 1, False
        return True

    def catch_up(self) -> int:
        added = 0
        for (pattern, name), s in self.subscriptions.items():
            if not s.active:
                continue
            c = self.consumers[name]
            for m in self.messages.values():
                late = m.place > s.mark and m.known_to < s.since and matches(pattern, m.type)
                if late and (c.pruned_to is None or m.id > c.pruned_to):
                    added += self._add(m.id, name, c.queue, c.priority, max(m.generation, c.generation))
            s.mark = self.written
        return added

    # Running

    def claimable(self, generation: int, suspects: bool) -> list[Delivery]:
        """What a worker of this generation may claim now, the lanes it must empty first at the front."""
        found = [
            d
            for d in self.deliveries.values()
            if d.status == "pending" and d.due and d.suspect == suspects and self._runnable(d, generation)
        ]
        return sorted(found, key=lambda d: d.lane)

    def _runnable(self, d: Delivery, generation: int) -> bool:
        c = self.consumers.get(d.consumer)
        if d.queue in self.paused_queues or (c is not None and (c.paused or c.blocked)):
            return False
        others = (w.generation for w in self.workers.values() if w.alive)
        return d.generation == generation or (d.generation < generation and d.generation not in others)

    def claim(self, id: UUID, worker: str) -> Claim:
        d = self.deliveries[id]
        d.status, d.owner, d.leased, d.attempts, d.fence = "in_flight", worker, True, d.attempts + 1, d.fence + 1
        return Claim(id, worker, d.fence)

    def forsaken(self) -> list[Delivery]:
        """What may be taken over: its lease is past, and so is its worker's."""
        return [
            d
            for d in self.deliveries.values()
            if d.status == "in_flight" and not d.leased and not ((w := self.workers.get(d.owner or "")) and w.alive)
        ]

    def take_over(self, id: UUID, worker: str) -> Claim:
        d = self.deliveries[id]
        d.owner, d.leased, d.fence = worker, True, d.fence + 1
        return Claim(id, worker, d.fence)

    def holds(self, claim: Claim) -> bool:
        d = self.deliveries.get(claim.delivery_id)
        return d is not None and d.fence == claim.fence and d.owner == claim.worker

    def settle(self, worker: str, s: Settlement) -> bool:
        if not self.holds(Claim(s.delivery_id, worker, s.fence)):
            return False
        d = self.deliveries[s.delivery_id]
        d.status, d.owner, d.leased = s.change.status.value, None, False
        d.attempts -= s.change.returns_attempt
        d.expiries = d.expiries + 1 if s.expired else 0
        d.suspect = s.suspect or (d.suspect and d.status != "delivered")
        match s.change:
            case Retry(delay) | Postpone(delay):
                d.due = not delay
            case Block(_, delay, held) | Release(delay, held):
                d.holds += held
                d.due = not delay
            case Park(_, _, until):
                d.due = until is not None
            case Deliver() | Dead() | Discard():
                d.old = False
        d.discarded = isinstance(s.change, Discard)
        if s.error is not None:
            d.error = s.error.message
        elif isinstance(s.change, Discard):
            d.error = s.change.reason
        d.failed_before = d.failed_before or isinstance(s.change, Retry | Dead)
        d.runs += s.keep_run or s.error is not None or isinstance(s.change, Discard)
        return True

    def complete(self, claim: Claim) -> bool:
        if not self.holds(claim):
            return False
        d = self.deliveries[claim.delivery_id]
        d.status, d.owner, d.leased, d.suspect, d.expiries, d.holds, d.old = (
            "delivered",
            None,
            False,
            False,
            0,
            0,
            False,
        )
        return True

    def start(self, worker: str, generation: int) -> None:
        self.workers[worker] = Worker(generation)

    def renew(self, worker: str) -> bool:
        """An expired lease is not renewed."""
        return worker in self.workers and self.workers[worker].alive

    # Operating

    def replay(self, ids: Iterable[UUID], generation: int | None, rerun: bool) -> list[UUID]:
        chosen = [
            d
            for id in sorted(set(ids))
            if (d := self.deliveries.get(id)) and (d.dead or (rerun and d.status == "delivered"))
            and self._holder(d.consumer, d.unique) is None
        ]  # fmt: skip
        taken: set[tuple[str, str]] = set()
        replayed = []
        for d in chosen:
            if d.unique is not None and (d.consumer, d.unique) in taken:
                continue
            taken |= {(d.consumer, d.unique)} if d.unique is not None else set()
            alive = [w.generation for w in self.workers.values() if w.alive]
            d.generation = generation if generation is not None else max(alive, default=d.generation)
            d.status, d.due, d.attempts, d.holds, d.expiries, d.suspect = "pending", True, 0, 0, 0, False
            d.error, d.failed_before, d.fence = None, False, d.fence + 1
            d.history = min(d.history + 1, FAILURE_HISTORY_LIMIT)
            replayed.append(d.id)
        self.audited += len(replayed)
        return replayed

    def discard(self, ids: Iterable[UUID]) -> set[UUID]:
        gone = {id for id in ids if (d := self.deliveries.get(id)) and d.dead}
        for id in gone:
            self.deliveries[id].discarded, self.deliveries[id].old = True, False
            self.deliveries[id].fence += 1
        self.audited += len(gone)
        return gone

    def cancel(self, ids: Iterable[UUID], reason: str | None) -> set[UUID]:
        gone = {id for id in ids if (d := self.deliveries.get(id)) and d.open}
        for id in gone:
            d = self.deliveries[id]
            d.status, d.owner, d.leased, d.discarded, d.old = "failed", None, False, True, False
            d.error, d.fence = reason or "cancelled", d.fence + 1
        self.audited += len(gone)
        return gone

    def pause_queue(self, queue: str) -> None:
        self.paused_queues.add(queue)
        self.audited += 1

    def resume_queue(self, queue: str) -> bool:
        paused = queue in self.paused_queues
        self.paused_queues.discard(queue)
        self.audited += paused
        return paused

    def pause_consumer(self, name: str) -> bool:
        if c := self.consumers.get(name):
            c.paused = True
            self.audited += 1
        return c is not None

    def resume_consumer(self, name: str) -> bool:
        c = self.consumers.get(name)
        if c is None or not c.paused:
            return False
        c.paused = False
        self.audited += 1
        return True

    def block_consumer(self, name: str) -> bool:
        if c := self.consumers.get(name):
            self.audited += not c.blocked
            c.blocked = True
        return c is not None

    def unblock_consumer(self, name: str) -> bool:
        c = self.consumers.get(name)
        if c is None or not c.blocked:
            return False
        c.blocked = False
        self.audited += 1
        return True

    def let_time_pass(self) -> None:
        for d in self.deliveries.values():
            d.due, d.leased, d.old = True, False, True
        for m in self.messages.values():
            m.old = True
        for w in self.workers.values():
            w.alive = False

    def prune(self, *, discarded: bool) -> int:
        gone = [
            d
            for d in self.deliveries.values()
            if d.old
            and (d.status == "failed" and d.discarded if discarded else d.status == "delivered")
            and not self._may_be_caught_up(d)
        ]
        for d in gone:
            del self.deliveries[d.id]
            if c := self.consumers.get(d.consumer):
                c.pruned_to = max(c.pruned_to or d.message_id, d.message_id)
        return len(gone)

    def _may_be_caught_up(self, d: Delivery) -> bool:
        """Whether its consumer has its message, or any from before its registration, still to catch up on."""
        m = self.messages[d.message_id]
        mine = (s for (_, name), s in self.subscriptions.items() if name == d.consumer and s.active)
        return any(
            s.mark < other.place and other.known_to < s.since and (other is m or other.place <= s.resumed)
            for s in mine
            for other in self.messages.values()
        )

    def prune_messages(self) -> int:
        needed = {d.message_id for d in self.deliveries.values()}
        seen = min((s.mark for s in self.subscriptions.values() if s.active), default=self.written)
        gone = [m.id for m in self.messages.values() if m.old and m.id not in needed and m.place <= seen]
        for id in gone:
            del self.messages[id]
        return len(gone)

    # What can be seen

    def shown(self) -> dict[UUID, dict[str, object]]:
        names = (
            "message_id consumer queue priority generation status due attempts fence owner leased suspect holds expiries "
            "history error failed_before discarded runs"
        )
        return {
            d.id: {
                **{name: getattr(d, name) for name in names.split()},
                "max_attempts": d.max_attempts or ((c := self.consumers.get(d.consumer)) and c.attempts),
                "ended": not d.open,
            }
            for d in self.deliveries.values()
        }

    def counted(self) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], int] = {}
        for d in self.deliveries.values():
            state = "suspect" if d.status == "pending" and d.suspect else "discarded" if d.discarded else d.status
            if state != "delivered":
                found[d.consumer, d.queue, state] = found.get((d.consumer, d.queue, state), 0) + 1
        return found
