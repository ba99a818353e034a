"""The promises of flow control, checked against a log of the database. It shares no code with the engine.

Each promise is a rule that sees every record in commit order and returns what broke it.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.flow.log import Record

RACE = 250.0
"""Milliseconds: a claim that began up to this long after a pause, replay or publish may not have seen it."""


@dataclass(frozen=True)
class Promise:
    """What a consumer declares. Times are milliseconds."""

    limit: int | None = None
    limit_by_key: bool = False
    rate: tuple[int, float] | None = None
    rate_by_key: bool = False
    order: str | None = None
    fair: int | None = None
    """How many claims of another key may come between two of a key with due work."""
    debounce: tuple[float, float] | None = None
    batch: tuple[int, float] | None = None


@dataclass
class Oracle:
    """Reads a log and collects the violations of these promises."""

    promises: Mapping[str, Promise]
    queues: Mapping[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    claims: Counter[str] = field(default_factory=Counter)
    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The highest number of deliveries in flight, by consumer (or queue) and key."""

    def read(self, log: Iterable[Record]) -> "Oracle":
        records = list(log)
        for record in records:
            self.claims[record.consumer] += record.is_claim
        for name, promise in self.promises.items():
            own = [record for record in records if record.consumer == name]
            for rule in (running, paused, rates, order, fairness, debounced, batches, outcomes):
                self.violations += [f"{name}: {found}" for found in rule(promise, own)]
            self._count(name, own, by_key=True)
            self._count(name, own, by_key=False)
        for name, limit in self.queues.items():
            self._count(f"queue {name}", [record for record in records if record.queue == name], by_key=False)
            if self.most[f"queue {name}", ""] > limit:
                self.violations.append(f"{self.most[f'queue {name}', '']} of queue {name} at once")
        return self

    def _count(self, name: str, records: Iterable[Record], *, by_key: bool) -> None:
        for key, held in in_flight(records, by_key=by_key):
            self.most[name, key] = max(self.most[name, key], held)


def in_flight(records: Iterable[Record], *, by_key: bool) -> Iterator[tuple[str, int]]:
    """The key and the number of its deliveries in flight after each claim."""
    running: defaultdict[str, set[str]] = defaultdict(set)
    for record in records:
        held = running[record.key if by_key else ""]
        if record.is_claim:
            held.add(record.delivery)
            yield (record.key if by_key else ""), len(held)
        elif record.was == "in_flight":
            held.discard(record.delivery)


def running(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Promises 1 and 4: no more at once than the limit; one of an ordered or debounced key."""
    if promise.limit is not None:
        for key, held in in_flight(records, by_key=promise.limit_by_key):
            if held > promise.limit:
                yield f"{held} of key {key!r} at once"
    if promise.order or promise.debounce:
        for key, held in in_flight(records, by_key=True):
            if held > 1:
                yield f"{held} of key {key!r} at once"


def paused(promise: Promise, records: list[Record]) -> Iterator[str]:
    """A paused key is not claimed."""
    since: dict[str, float] = {}
    for record in records:
        if record.event == "pause":
            since[record.key] = record.at
        elif record.event == "resume":
            since.pop(record.key, None)
        elif record.is_claim and record.began > since.get(record.key, record.began) + RACE:
            yield f"key {record.key!r} was claimed while it was paused"


def rates(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Promise 2: so many claims in any window. A claim happened at a time between `began` and `at`."""
    if promise.rate is None:
        return
    count, window = promise.rate
    claims: defaultdict[str, deque[Record]] = defaultdict(deque)
    for record in records:
        if record.is_claim:
            own = claims[record.key if promise.rate_by_key else ""]
            own.append(record)
            if len(own) > count:
                first = own.popleft()
                if record.at - first.began < window:
                    yield f"{count + 1} of key {record.key!r} in {record.at - first.began:.0f} of {window:.0f} ms"


def order(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Promises 3, 4 and 5: a claim takes the first unfinished delivery of its key; a dead letter blocks or is skipped."""
    if promise.order is None:
        return
    heads: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    unfinished: dict[str, float] = {}
    for record in records:
        if record.event != "delivery":
            continue
        first = heads[record.key]
        if record.is_claim:
            while first and first[0][1] not in unfinished:
                heappop(first)
            if first and first[0][0] < record.number and unfinished[first[0][1]] + RACE < record.began:
                yield f"key {record.key!r}: {record.number} before {first[0][0]}"
        elif record.now == "pending" and record.was != "in_flight":
            # A publish is visible to every later one; a replay may be too late for a claim that has begun.
            is_late = record.was == "failed" and promise.order == "skip"
            unfinished[record.delivery] = record.at if is_late else 0.0
            heappush(first, (record.number, record.delivery))
        elif record.now == "delivered" or record.discarded or (record.now == "failed" and promise.order == "skip"):
            unfinished.pop(record.delivery, None)


def fairness(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Promise 6: a key with due work is not passed over while another has many turns."""
    if promise.fair is None:
        return
    waiting: defaultdict[str, dict[str, float]] = defaultdict(dict)
    passed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    is_paused: set[str] = set()
    for record in records:
        if record.event != "delivery":
            (is_paused.add if record.event == "pause" else is_paused.discard)(record.key)
            passed.pop(record.key, None)
        elif record.is_claim:
            waiting[record.key].pop(record.delivery, None)
            passed.pop(record.key, None)
            for key, due in waiting.items():
                if key != record.key and key not in is_paused and due and min(due.values()) + RACE < record.began:
                    passed[key][record.key] += 1
                    if passed[key][record.key] > promise.fair:
                        yield f"{passed[key][record.key]} claims of key {record.key!r} while key {key!r} waited"
                        passed.pop(key)
        elif record.was is None:
            waiting[record.key][record.delivery] = max(record.at, record.run_at)
        elif record.was == "pending":
            waiting[record.key].pop(record.delivery, None)


def debounced(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Promise 7: the newest runs, after the quiet time or the longest wait, and stands for all older ones."""
    if promise.debounce is None:
        return
    quiet, longest = promise.debounce
    waiting: defaultdict[str, dict[str, Record]] = defaultdict(dict)
    running: defaultdict[str, dict[str, Record]] = defaultdict(dict)
    superseded: dict[str, Record] = {}
    for record in records:
        own, runs, last = waiting[record.key], running[record.key], superseded.get(record.key)
        if record.now == "pending":
            own[record.delivery] = record
        if record.is_claim:
            newer = [other for other in own.values() if other.number > record.number]
            if any(other.at + RACE < record.began for other in newer):
                yield f"key {record.key!r}: {record.number} ran although {max(o.number for o in newer)} waited"
            oldest = min(other.created_at for other in own.values())
            if last is not None and last.began == record.began:  # of the same transaction
                oldest = min(oldest, last.created_at)
            if record.at < min(record.created_at + quiet, oldest + longest) - 2:
                yield f"key {record.key!r}: {record.number} ran after {record.at - record.created_at:.0f} ms"
            runs[record.delivery] = record
        if record.was == "in_flight":
            runs.pop(record.delivery, None)
        if record.was == "pending":
            own.pop(record.delivery, None)
            if record.superseded:
                if not any(other.number > record.number for other in (*own.values(), *runs.values())):
                    yield f"key {record.key!r}: {record.number} was superseded by nothing"
                if last is None or last.began != record.began or last.created_at > record.created_at:
                    superseded[record.key] = record


def batches(promise: Promise, records: list[Record]) -> Iterator[str]:
    """A batch is complete, or its oldest item has been due for long enough; a suspect runs alone."""
    if promise.batch is None:
        return
    size, within = promise.batch
    taken: defaultdict[tuple[str | None, float], list[Record]] = defaultdict(list)
    for record in records:
        if record.is_claim and not record.suspect:
            taken[record.worker, record.began].append(record)
    for batch in taken.values():
        late = max(record.at for record in batch) - min(record.run_at for record in batch)
        if len(batch) > size or (len(batch) < size and late < within):
            yield f"a batch of {len(batch)} after {late:.0f} ms"


def outcomes(promise: Promise, records: list[Record]) -> Iterator[str]:
    """Every delivery ends, and is delivered once unless it is replayed."""
    last: dict[str, Record] = {}
    for record in records:
        if record.event != "delivery":
            continue
        before = last.get(record.delivery)
        if before is not None and before.now == "delivered":
            yield f"{record.number} became {record.now} after it was delivered"
        last[record.delivery] = record
    for record in last.values():
        if record.now in ("pending", "in_flight"):
            yield f"{record.number} of key {record.key!r} is still {record.now}"
