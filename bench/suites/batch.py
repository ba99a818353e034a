"""Batch handlers: a drain in lists of 100 compared with one delivery at a time, in one run."""

from collections.abc import Iterator

from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import BATCHED, OURS, Kind, Subject, named
from bench.suites.drain import publish_and_drain

SUITE = "batch"


def batch_suite(run: Run) -> None:
    """The same drain by a plain handler and by a batch handler, on both stores."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        count = run.sizes.snapshot
        _, seconds = publish_and_drain(run, subject, count)
        yield Measurement(SUITE, subject.name, "drain", count / seconds, "/s", turn, subject.kind.value, count)

    subjects = [one for kind in (Kind.POSTGRES, Kind.SQLITE) for one in (named(OURS, kind), BATCHED[kind])]
    interleaved(run, SUITE, subjects, measure)
