"""Bulk publish and drain: how fast many deliveries are written, and handled and settled by one worker process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from bench.check import check
from bench.child import Child, ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import BOUND, OURS, Kind, Subject, chosen, one_each

_TRIAL = 200
_STRONGEST = (OURS, BOUND, "pgqueuer")
_MOST = 600_000


Around = AbstractContextManager[None]


def _nothing(where: str) -> Around:
    return nullcontext()


def drain_suite(run: Run, kind: Kind = Kind.POSTGRES) -> None:
    """Publishes and drains with each subject, each with as many deliveries as fill a round."""
    suite = f"drain-{kind.value}"
    counts: dict[Subject, int] = {}

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        if subject not in counts:
            counts[subject] = _size(run, subject)
        count = counts[subject]
        published, drained = publish_and_drain(run, subject, count)
        yield Measurement(suite, subject.name, "publish", count / published, "/s", turn, count=count)
        yield Measurement(suite, subject.name, "drain", count / drained, "/s", turn, count=count)

    subjects = chosen(kind, run.peers)
    if not run.sizes.defaults:
        subjects = [one for one in subjects if one in one_each(subjects) or one.peer in _STRONGEST]
    interleaved(run, suite, subjects, measure)


def publish_suite(run: Run) -> None:
    """Bulk publish alone, for who works on it: the drain suite measures it too."""
    count = run.sizes.drain

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            run.stores.settle()
            seconds = ask(subject, "publish", where, count=count)["seconds"]
        yield Measurement("publish", subject.name, "publish", count / seconds, "/s", turn, count=count)

    interleaved(run, "publish", one_each(chosen(Kind.POSTGRES, run.peers)), measure)


def publish_and_drain(
    run: Run, subject: Subject, count: int, size: int = 100, around: Callable[[str], Around] = _nothing
) -> tuple[float, float]:
    """Seconds to publish and to drain so many: from the first handler to the moment the store says that all are settled."""
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        with around(where):
            return _publish_and_drain(run, subject, where, count, size)


def _publish_and_drain(run: Run, subject: Subject, where: str, count: int, size: int) -> tuple[float, float]:
    published = ask(subject, "publish", where, count=count, size=size, seconds=600)["seconds"]
    run.stores.settle()
    with Child(subject, "work", where, count=count) as child:
        answer = child.wait_for("done", 900)
    check(count, answer["ids"], answer["settled"])
    return published, answer["ended"] - answer["first"]


def _size(run: Run, subject: Subject) -> int:
    """How many fill the round, by a small trial and then a larger one: the first second says little of a fast one."""
    count, goal = _TRIAL, run.sizes.seconds
    seconds = sum(publish_and_drain(run, subject, count))
    if seconds < goal / 10:
        count = int(count * goal / 10 / seconds)
        seconds = sum(publish_and_drain(run, subject, count))
    count = max(_TRIAL, min(_MOST, int(count * goal / seconds)))
    at_least = run.sizes.drain if subject.peer in _STRONGEST and subject.kind is Kind.POSTGRES else _TRIAL
    return max(at_least, count)
