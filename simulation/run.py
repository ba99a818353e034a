"""One run: the time of faults, the quiet time after it, and the check of the history."""

import gc
import sys
import warnings
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from unittest.mock import patch

import orjson

from simulation import features
from simulation.actors import Publisher, operator, suspect_worker, worker
from simulation.application import ATTEMPTS, CALL_LIMIT, ORDERED_ATTEMPTS, TICK_SECONDS, chance
from simulation.checks import CONSUMERS, Violation, violations
from simulation.database import AnyDatabase
from simulation.environment import simulated
from simulation.faults import Planned
from simulation.history import Change, Effect, History, LeaseChange, Occurrence, Rules, StoredMessage
from simulation.world import Settings, World

_OPEN = "select count(*) from {} where status in ('pending', 'in_flight')"


_ORDERS = "select id from {} where type = 'order.placed'"


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed showed."""

    settings: Settings
    violations: list[Violation]
    faults: list[Planned]
    trace: list[str]
    digest: str
    seconds: float
    """Virtual seconds."""
    deliveries: int


def simulate(settings: Settings, database: AnyDatabase) -> Result:
    """Runs one seed and checks its history."""
    world = World(settings, database)
    collects = gc.isenabled()
    gc.disable()
    try:
        with simulated(world):
            _run(world)
            history = _collect(world)
            trace, digest, seconds = world.trace, world.digest, world.clock.seconds
            _dispose(world)
    finally:
        if collects:
            gc.enable()
    found = violations(history, _rules(world))
    return Result(settings, found, world.faults.applied, trace, digest, seconds, len(history.deliveries))


def _dispose(world: World) -> None:
    """Frees the tasks of all processes while nothing that their `finally` blocks do can reach the next run."""
    with patch.object(sys, "unraisablehook", lambda _: None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world.close()
        gc.collect()


def _run(world: World) -> None:
    settings = world.settings
    publishers = [Publisher(number) for number in range(1, settings.publishers + 1)]
    for number in range(1, (settings.workers or _workers(world)) + 1):
        world.start(f"worker-{number}", worker)
    for number, publisher in enumerate(publishers, 1):
        world.start(f"publisher-{number}", publisher.run, until=partial(publisher.is_done, world))
    world.start("operator", operator, until=lambda: world.operator_done)
    used = features.features(world)
    if "late" in used:
        # Its first worker starts after the time at which apps include the late consumer.
        world.call_later(features.late_at(world) + 0.001, lambda: world.start("worker-late", worker))
    if "outage" in used:
        world.call_later(chance(world, "outage at") * 0.8 * settings.seconds, world.begin_outage)
    _watch_suspects(world)
    world.run(lambda: world.clock.seconds >= settings.seconds, settings.seconds)
    world.faults.enabled, world.quiet = False, True
    world.record("world", "no more faults", {})

    def is_done() -> bool:
        return world.operator_done and all(one.is_done(world) for one in publishers) and _is_complete(world)

    world.run(is_done, settings.quiet_seconds)
    world.history.quiet_seconds = world.clock.seconds - settings.seconds


def _workers(world: World) -> int:
    """One to three. Without another worker nothing finds what the only one overlooks."""
    return 1 + int(chance(world, "workers") * 3)


def _is_complete(world: World) -> bool:
    """Whether every delivery has ended, the relay has sent everything, and the late consumer got everything."""
    if not world.database.is_readable:
        return False
    used = features.features(world)
    ((found,),) = world.database.read(_OPEN.format(world.database.delivery))
    if found:
        return False
    orders = {str(id) for (id,) in world.database.read(_ORDERS.format(world.database.message))}
    if "late" in used:
        ((late,),) = world.database.read(
            "select count(*) from sim_change where consumer = 'late' and old_status is null"
        )
        if late < len(orders):
            return False
    return "relay" not in used or orders <= set(world.history.relayed)


def _watch_suspects(world: World) -> None:
    """Starts the child process for suspect deliveries, as the quarantine of a worker does."""
    suspects = f"select count(*) from {world.database.delivery} where status = 'pending' and suspect"
    if world.database.is_readable:
        ((found,),) = world.database.read(suspects)
        if found and not any(process.name.startswith("suspects") for process in world.processes):
            world.start("suspects", suspect_worker, until=lambda: True)
    world.call_later(1.0, lambda: _watch_suspects(world))


def _collect(world: World) -> History:
    """Reads the final tables and the recorded changes."""
    history, read = world.history, world.database.read
    history.ended_at = world.clock.milliseconds()
    history.changes = [Change(*row) for row in read("select * from sim_change order by n")]
    history.leases = [LeaseChange(*row) for row in read("select * from sim_lease order by n")]
    history.pauses = [
        (n, name, bool(on)) for n, name, on in read("select n, consumer, paused from sim_pause order by n")
    ]
    history.effects = [Effect(*row) for row in read("select * from effect order by delivery, attempt")]
    history.deliveries = {str(id): status for id, status in read(f"select id, status from {world.database.delivery}")}
    for id, type, key, payload, headers in read(
        f"select id, type, key, payload, headers from {world.database.message}"
    ):
        body = _json(payload)
        arguments = body.get("args", body) if isinstance(body, dict) else {}
        history.messages.append(StoredMessage(str(id), type, key, _number(body) if arguments is not None else None))
        if "scheduled_for" in (known := _json(headers)):
            at = datetime.fromisoformat(known["scheduled_for"])
            history.occurrences.append(Occurrence(str(id), round(at.timestamp() * 1000)))
    return history


def _json(stored: Any) -> Any:
    """A column of JSON: SQLite returns a text, PostgreSQL the value."""
    return orjson.loads(stored) if isinstance(stored, str | bytes) else stored


def _number(body: object) -> int | None:
    """The number of a publication, at any depth of a payload."""
    if isinstance(body, dict):
        if isinstance(found := body.get("n"), int):
            return found
        return next((number for value in body.values() if (number := _number(value)) is not None), None)
    if isinstance(body, list):
        return next((value for value in body if isinstance(value, int)), None)
    return None


def _rules(world: World) -> Rules:
    used = features.features(world)
    return Rules(
        features=used,
        consumers={
            kind: CONSUMERS.get(kind, frozenset())
            | {name for feature, name in features.CONSUMERS.get(kind, {}).items() if feature in used}
            for kind in {*CONSUMERS, *features.CONSUMERS}
        },
        rates={"mail": (features.RATE, features.RATE_SECONDS * 1000)},
        parts=features.PARTS,
        attempts={"book": ATTEMPTS, "post": ATTEMPTS, "pay": ATTEMPTS, "call": ATTEMPTS, "ledger": ORDERED_ATTEMPTS}
        | dict.fromkeys(("mail", "late", "sum", "part", "remind"), ATTEMPTS),
        limits={"call": CALL_LIMIT},
        ordered=frozenset({"ledger"}),
        tick_ms=TICK_SECONDS * 1000,
        lease_ms=round(world.settings.lease * 1000),
        terminal=lambda consumer, n: consumer == "pay" and chance(world, "terminal", n) < 0.1,
    )
