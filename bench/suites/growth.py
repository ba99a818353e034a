"""Cost as it grows: throughput by processes, by payload, and by consumers per event."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg

from bench.check import check
from bench.child import Child, Failed, ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, chosen, named
from bench.suites.drain import publish_and_drain

SUITE = "growth"
PROCESSES, PAYLOADS, CONSUMERS = (1, 2, 4), (100, 1000, 10_000), (1, 3, 10)
_UNSETTLED = {
    "holdfast": "select exists (select 1 from holdfast.delivery where status in ('pending', 'in_flight'))",
    "pgqueuer": "select exists (select 1 from pgqueuer)",
}


def growth_suite(run: Run) -> None:
    """Ours and the strongest peer; consumers are ours alone."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        count = run.sizes.growth
        for processes in PROCESSES:
            rate = _several(run, subject, processes, count * min(2, processes))
            yield Measurement(SUITE, subject.name, "processes", rate, "/s", turn, processes, count)
        for size in PAYLOADS:
            seconds = publish_and_drain(run, subject, count, size)[1]
            yield Measurement(SUITE, subject.name, "payload", count / seconds, "/s", turn, size, count)
        for consumers in CONSUMERS if subject.peer == OURS else ():
            many = replace(subject, settings={**subject.settings, "consumers": consumers})
            events = count // consumers
            seconds = publish_and_drain(run, many, events)[1]
            yield Measurement(
                SUITE, subject.name, "consumers", events * consumers / seconds, "/s", turn, consumers, count
            )

    wanted = [one for one in chosen(Kind.POSTGRES, run.peers) if one in (named(OURS), named("pgqueuer/best"))]
    interleaved(run, SUITE, wanted, measure)


def _several(run: Run, subject: Subject, processes: int, count: int) -> float:
    """Deliveries a second while all of the processes were at work: between the last first and the first last."""
    with run.stores.fresh(subject.kind) as where, contextlib.ExitStack() as stack:
        ask(subject, "setup", where)
        ask(subject, "publish", where, count=count)
        run.stores.settle()
        workers = [stack.enter_context(Child(subject, "work", where, timed=True)) for _ in range(processes)]
        _wait_for_the_end(where, _UNSETTLED[subject.peer])
        for worker in workers:
            worker.stop()
        done = [worker.wait_for("done", 60) for worker in workers]
    check(count, [id for one in done for id in one["ids"]], done[-1]["settled"])
    return together([one["times"] for one in done])


def together(times: list[list[float]]) -> float:
    """The joint rate in the window in which all were at work."""
    begins, ends = max(one[0] for one in times), min(one[-1] for one in times)
    if ends <= begins:
        raise Failed("the processes did not work at the same time; give them more")
    return sum(1 for one in times for at in one if begins <= at <= ends) / (ends - begins)


def _wait_for_the_end(where: str, question: str) -> None:
    with psycopg.connect(where, autocommit=True) as conn:
        deadline = time.monotonic() + 300
        while conn.execute(question.encode()).fetchone() != (False,):
            if time.monotonic() > deadline:
                raise Failed("several processes did not finish within 300 s")
            time.sleep(0.05)
