"""The contract of every broker. A test module provides a `Broker` and a database, and calls these functions.

`survives` is the acceptance: records come in while workers are killed at random and the broker is restarted; afterwards
nothing is lost, every effect is there once, and the broker's own client says that nothing is left. `each_step` kills
a worker at every step between the fetch and the acknowledgement.
"""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import orjson

from tests.brokers.programs.app import CONSUMERS, TABLE
from tests.brokers.programs.ingest_app import INGEST, SUBSCRIBERS
from tests.engine.programs.place import Place, Process, until

PATIENCE = 60.0
STEPS = (
    "stored.fetched",
    "publish.uncommitted",
    "stored.acknowledged",
    "stored.unacknowledged",
    "straight.fetched",
    "straight.uncommitted",
    "straight.acknowledged",
    "straight.committed",
)
"""Where a worker is killed: before the commit, between it and the acknowledgement, and after that."""

INGEST_STEPS = ("in.fetched", "publish.uncommitted", "publish.committed", "in.unacknowledged", "in.acknowledged")
"""The same for an ingest. After the commit and before the acknowledgement: `publish.committed` and `in.unacknowledged`."""


class Broker(Protocol):
    """A real broker under test, as its own client sees it."""

    @property
    def source(self) -> str:
        """`module:function` of a function (stream, group) that makes a source; it runs in other processes."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What other processes need to reach it."""
        ...

    def prepare(self, stream: str, groups: Sequence[str]) -> None:
        """Makes what must be there before records are put: streams, queues, groups."""
        ...

    def put(self, stream: str, bodies: Sequence[bytes]) -> None:
        """Puts records with the broker's own client, and returns when they are confirmed; through a restart, too."""
        ...

    def unsettled(self, stream: str, group: str) -> int:
        """How many records a group has not been handed yet or has not acknowledged, by the broker's own tools."""
        ...

    def restart(self) -> None:
        """Ends the server, or one node of it, hard, and starts it again; what it had confirmed is there afterwards."""
        ...


def start_worker(place: Place, broker: Broker, stream: str, crash: str = "", app: str = "app") -> Process:
    """Starts a worker; it crashes at the named step, if one is given."""
    return place.program(
        *("holdfast", "worker", "--app", f"tests.brokers.programs.{app}:hf"),
        *("--lease", "2s", "--grace", "5s"),
        environment={
            **broker.environment,
            "HOLDFAST_TEST_SOURCE": broker.source,
            "HOLDFAST_TEST_STREAM": stream,
            "HOLDFAST_TEST_CRASH": crash,
        },
    )


def prepare_app(place: Place, broker: Broker, stream: str) -> None:
    place.sql(TABLE)
    broker.prepare(stream, CONSUMERS)


def bodies(numbers: Sequence[int]) -> list[bytes]:
    return [orjson.dumps({"n": n}) for n in numbers]


def survives(
    place: Place,
    broker: Broker,
    stream: str,
    *,
    records: int,
    workers: int,
    kills: int = 3,
    seed: int = 7,
    restarts: int = 1,
    patience: float = PATIENCE,
) -> None:
    """No record is lost and no effect is applied twice while workers and brokers are killed.

    On SQLite one worker runs at a time.
    """
    chance = random.Random(seed)
    prepare_app(place, broker, stream)
    running = [start_worker(place, broker, stream) for _ in range(workers)]
    restart_at = set(chance.sample(range(1, kills), restarts))
    for portion in range(kills):
        broker.put(stream, bodies(range(portion * records // kills, (portion + 1) * records // kills)))
        if portion in restart_at:
            broker.restart()
        time.sleep(chance.uniform(0.1, 0.5))
        # Killing a worker that is still starting would test nothing.
        victim = chance.randrange(workers)
        until(lambda: "worker started" in running[victim].log, "no worker starts", patience, place.logs)  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.3))
        running[victim].kill_family()
        running[victim] = start_worker(place, broker, stream)
    settled(place, broker, stream, records, patience)


def each_step(place: Place, broker: Broker, stream: str, steps: Sequence[str] = STEPS, *, each: int = 5) -> None:
    """A worker dies at each of these steps, one after the other; then one lives."""
    prepare_app(place, broker, stream)
    records = 0
    for step in steps:
        broker.put(stream, bodies(range(records, records + each)))
        records += each
        worker = start_worker(place, broker, stream, step)
        place.reached(f"crashed.{step}", PATIENCE)
        worker.ended()
    start_worker(place, broker, stream)
    settled(place, broker, stream, records)


def ingested_once(place: Place, broker: Broker, stream: str, steps: Sequence[str] = INGEST_STEPS) -> None:
    """Records become events; a worker dies at each step, and each record is sent twice with the same dedupe key."""
    place.sql(TABLE)
    broker.prepare(stream, (INGEST,))
    for number, step in enumerate(steps):
        broker.put(stream, [orjson.dumps({"n": number, "sent": n}) for n in (1, 1)])
        worker = start_worker(place, broker, stream, step, "ingest_app")
        place.reached(f"crashed.{step}", PATIENCE)
        worker.ended()
    start_worker(place, broker, stream, app="ingest_app")
    expected = len(steps) * len(SUBSCRIBERS)
    until(lambda: sum(effects(place).values()) == expected, "effects are missing", PATIENCE, place.logs)
    until(lambda: broker.unsettled(stream, INGEST) == 0, "records are left at the broker", PATIENCE, place.logs)
    place.drained(PATIENCE)
    assert place.one("select count(*) from {hf}message where type = 'payment.settled'") == len(steps)
    assert place.one("select count(*) from {hf}delivery") == expected
    assert place.one("select count(*) from effect") == expected


def settled(place: Place, broker: Broker, stream: str, records: int, patience: float = PATIENCE) -> None:
    """Waits until both consumers have had every effect, and sees that each is there once and nothing is left."""
    for consumer in CONSUMERS:
        until(
            lambda: place.one("select count(distinct n) from effect where consumer = ?", consumer) == records,  # noqa: B023
            f"{consumer} lost records",
            patience,
            lambda: f"{effects(place)}\n{place.statuses()}\n{place.logs()}",
        )
        until(
            lambda: broker.unsettled(stream, consumer) == 0,  # noqa: B023
            f"something of {consumer} is left at the broker",
            patience,
            lambda: f"{broker.unsettled(stream, consumer)}\n{place.logs()}",  # noqa: B023
        )
    place.drained(patience)
    assert place.sql("select consumer, n, count(*) from effect group by consumer, n having count(*) > 1") == []
    failed = place.sql("select consumer, last_error, attempts from {hf}delivery where status = 'failed'")
    assert not failed, failed[:5]


def effects(place: Place) -> dict[str, int]:
    return dict(place.sql("select consumer, count(distinct n) from effect group by consumer"))
