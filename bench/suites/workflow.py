"""Workflows: three-step runs compared with three plain jobs in one run, and with the same steps of the peers."""

import asyncio
import statistics
import time
from collections.abc import Iterator

from bench.check import Wrong, check
from bench.child import Child, ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, WORKFLOWS, Kind, Subject, named
from bench.workflow_load import Load, Loaded, advance_500, drain, fan_in, step_to_step

PEERS = "workflow-peers"
WAITS = {"no run waits": 0, "10,000 runs wait": 10_000}
_ITEMS = 10_000
_STEPS = 200


def suite_name(kind: Kind) -> str:
    return f"workflow-{kind.value}"


def workflow_suite(run: Run) -> None:
    """Ours on both stores, then a workflow of three steps of each peer."""
    for kind in (Kind.POSTGRES, Kind.SQLITE):
        interleaved(run, suite_name(kind), [named(OURS, kind)], lambda one, turn: _ours(run, one, turn))
    peers = [one for one in WORKFLOWS if not run.peers or one.peer in (OURS, *run.peers)]
    interleaved(run, PEERS, peers, lambda one, turn: _peer(run, one, turn))


def _ours(run: Run, subject: Subject, turn: int) -> Iterator[Measurement]:
    kind, count = subject.kind, run.sizes.runs

    def figure(metric: str, value: float, unit: str, point: str | None = None, of: int = count) -> Measurement:
        return Measurement(suite_name(kind), subject.name, metric, value, unit, turn, point, of)

    for load in Load:
        found = _drained(run, kind, load, count)
        yield figure("drain", count / found.drained, "/s", load.value)
        yield figure("start and drain", count / (found.started + found.drained), "/s", load.value)
        yield figure("processor time of the worker", 1e6 * found.processor / count, "µs", load.value)
    for point, waiting in WAITS.items():
        found = _drained(run, kind, Load.JOBS, count, waiting)
        yield figure("plain drain", 3 * count / found.drained, "/s", point)
    with run.stores.fresh(kind) as where:
        for point, seconds in asyncio.run(step_to_step(where, _STEPS)).items():
            yield figure("step to step p50", 1000 * statistics.median(seconds), "ms", point, len(seconds))
    with run.stores.fresh(kind) as where:
        yield figure("advance of 500", 1000 * statistics.median(asyncio.run(advance_500(where))), "ms", of=500)
    with run.stores.fresh(kind) as where:
        took, successors = asyncio.run(fan_in(where, _ITEMS))
    if successors != 1:
        raise Wrong(f"the step after {_ITEMS} items started {successors} times")
    yield figure("fan-in of 10,000", _ITEMS / took, "/s", of=_ITEMS)


def _drained(run: Run, kind: Kind, load: Load, count: int, waiting: int = 0) -> Loaded:
    with run.stores.fresh(kind) as where:
        return asyncio.run(drain(where, load, count, run.stores.settle, waiting))


def _peer(run: Run, subject: Subject, turn: int) -> Iterator[Measurement]:
    """Workflows a second of one worker process, from its start until the store says that all have ended.

    Not from the first one that ends: a worker that runs each step of all of them before the next step ends them almost together.
    """
    count = run.sizes.runs if subject.peer == OURS else run.sizes.peer_runs
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        published = ask(subject, "publish", where, count=count, seconds=600)["seconds"]
        run.stores.settle()
        with Child(subject, "work", where, count=count) as child:
            child.wait_for("started", 60)
            began = time.monotonic()  # the clock of the answers: all processes of a machine share it
            answer = child.wait_for("done", 900)
    check(count, answer["ids"], answer["settled"])
    drained = answer["ended"] - began
    yield Measurement(PEERS, subject.name, "workflows", count / drained, "/s", turn, count=count)
    yield Measurement(
        PEERS, subject.name, "start and workflows", count / (published + drained), "/s", turn, count=count
    )
