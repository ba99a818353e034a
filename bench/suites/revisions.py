"""The working tree next to earlier revisions: publish, drain and idle latency, in alternating rounds."""

from collections.abc import Iterator

import psutil

from bench.check import check
from bench.child import Child, ask
from bench.measure import Measurement, Results
from bench.plan import Run
from bench.revisions import at_revision
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, named
from bench.suites.latency import idle_latencies

_DELIVERIES = {Kind.POSTGRES: 60_000, Kind.SQLITE: 40_000}
_SINGLE = 1_000


def revisions_suite(run: Run) -> None:
    """Compares with each revision of `--against`. Processor time is that of the publishing and of the working process."""
    for kind in (Kind.POSTGRES, Kind.SQLITE):
        subjects = [named(OURS, kind), *(at_revision(revision, kind) for revision in run.against)]
        interleaved(run, f"revisions-{kind.value}", subjects, lambda subject, turn: _measure(run, subject, turn))


def ratios(results: Results) -> list[tuple[str, str, str, float]]:
    """Suite, figure, revision, and the median of ours divided by the median of the revision."""
    found = []
    for suite in (f"revisions-{kind.value}" for kind in (Kind.POSTGRES, Kind.SQLITE)):
        for metric in dict.fromkeys(m.metric for m in results.measurements if m.suite == suite):
            ours = results.spread(suite, OURS, metric)
            for subject in results.subjects(suite, metric):
                theirs = results.spread(suite, subject, metric)
                if subject != OURS and ours and theirs:
                    found.append((suite, metric, subject, ours.median / theirs.median))
    return found


def _measure(run: Run, subject: Subject, turn: int) -> Iterator[Measurement]:
    suite, count = f"revisions-{subject.kind.value}", _DELIVERIES[subject.kind]

    def figure(metric: str, value: float, unit: str) -> Measurement:
        return Measurement(suite, subject.name, metric, value, unit, turn)

    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        published = ask(subject, "publish", where, count=count, seconds=600)["seconds"]
        run.stores.settle()
        with Child(subject, "work", where, count=count) as worker:
            process = psutil.Process(worker.pid)
            worker.wait_for("started", 60)
            before = _processor(process)
            answer = worker.wait_for("done", 900)
            used = _processor(process) - before
        check(count, answer["ids"], answer["settled"])
    yield figure("publish", count / published, "/s")
    yield figure("drain", count / (answer["ended"] - answer["first"]), "/s")
    yield figure("processor time of the worker per delivery", 1e6 * used / count, "µs")
    if subject.kind is Kind.POSTGRES:
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            rate = ask(subject, "transact", where, count=_SINGLE)
            yield figure("one publish in a transaction", _SINGLE / rate["seconds"], "/s")
        for share, milliseconds in idle_latencies(run, subject).items():
            yield figure(f"idle latency {share}", milliseconds, "ms")


def _processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
