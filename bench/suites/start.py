"""Drain from the start of the worker's process: imports, connections and the first claim count too."""

import time
from collections.abc import Iterator

from bench.check import check
from bench.child import Child, ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, chosen, named

SUITE = "start"
COUNT = 30_000


def start_suite(run: Run) -> None:
    """Ours and the strongest peer."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            ask(subject, "publish", where, count=COUNT)
            run.stores.settle()
            # All processes of a machine read the same monotonic clock.
            started = time.monotonic()
            with Child(subject, "work", where, count=COUNT) as worker:
                done = worker.wait_for("done", 300)
            check(COUNT, done["ids"], done["settled"])
        first, ended = done["first"] - started, done["ended"] - started
        yield Measurement(SUITE, subject.name, "process start to first handler", 1000 * first, "ms", turn)
        yield Measurement(SUITE, subject.name, "drain with start-up", COUNT / ended, "/s", turn, count=COUNT)

    wanted = [one for one in chosen(Kind.POSTGRES, run.peers) if one in (named(OURS), named("pgqueuer/best"))]
    interleaved(run, SUITE, wanted, measure)
