"""Memory of a worker process: at rest, and while many deliveries pass through it."""

import threading
from collections.abc import Iterator

import psutil

from bench.check import Wrong
from bench.child import Child, ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Subject, named

SUITE = "memory"
_REST = 5.0
_EVERY = 0.2
_PARTS = 5


def memory_suite(run: Run) -> None:
    """Once for all rounds: a worker's memory hardly varies."""
    measured: set[Subject] = set()

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        if subject not in measured:
            measured.add(subject)
            yield from _measure(run, subject)

    interleaved(run, SUITE, [named(OURS)], measure)


def _measure(run: Run, subject: Subject) -> Iterator[Measurement]:
    count, stop, samples = run.sizes.memory, threading.Event(), []
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        with Child(subject, "work", where, count=count, keep=False) as worker:
            worker.wait_for("started", 60)
            process = psutil.Process(worker.pid)
            stop.wait(_REST)
            rest = _megabytes(process)

            def watch() -> None:
                while not stop.wait(_EVERY):
                    samples.append(_megabytes(process))

            watching = threading.Thread(target=watch, daemon=True)
            watching.start()
            ask(subject, "publish", where, count=count, seconds=900)
            done = worker.wait_for("done", 900)
            stop.set()
            watching.join()
    if done["settled"] != {"settled": count, "twice": 0}:
        raise Wrong(f"the store says {done['settled']} of {count}")
    parts = peaks(samples)
    yield Measurement(SUITE, subject.name, "at rest", rest, "MB", count=0)
    for part, peak in enumerate(parts, 1):
        yield Measurement(SUITE, subject.name, "peak", peak, "MB", point=part / _PARTS, count=count)
    # The first part warms up: pools open, statements are prepared.
    yield Measurement(SUITE, subject.name, "growth", parts[-1] / parts[1], "times", count=count)


def peaks(samples: list[float], parts: int = _PARTS) -> list[float]:
    """The highest of each part of the run."""
    size = max(1, len(samples) // parts)
    found = [max(samples[start : start + size]) for start in range(0, len(samples), size)]
    return (found + found[-1:] * parts)[:parts]


def _megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6
