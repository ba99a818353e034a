"""Steady load: an open loop publishes at a fixed rate; how long from the moment each was due until it was handled."""

from collections.abc import Iterator

from bench.check import check
from bench.child import Child, Failed, ask
from bench.measure import Measurement, quantile
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import BOUND, OURS, Kind, Subject, chosen, named, one_each
from bench.suites.drain import publish_and_drain

SUITE = "steady"
_TRIAL = 20_000
_KNOWN_AS = "drain-postgres"


def steady_suite(run: Run) -> None:
    """At half of what ours drains at most, and at half of what the fastest peer does. Who cannot hold a rate is named."""
    subjects = one_each(chosen(Kind.POSTGRES, run.peers))
    fastest = {subject: most for subject in subjects if subject.peer != BOUND and (most := _most(run, subject))}
    ours = next(most for subject, most in fastest.items() if subject.peer == OURS)
    best_peer = max((most for subject, most in fastest.items() if subject.peer != OURS), default=ours)
    for rate, point in ((ours / 2, "half of ours"), (best_peer / 2, "half of the fastest peer")):
        able = [subject for subject, most in fastest.items() if most > rate]
        for subject in fastest.keys() - set(able):
            reason = f"drains {fastest[subject]:,.0f}/s at most, less than the load of {rate:,.0f}/s ({point})"
            run.results.blame(SUITE, subject.name, "too slow", reason)

        def measure(subject: Subject, turn: int, rate: float = rate, point: str = point) -> Iterator[Measurement]:
            yield from _measure(run, subject, turn, rate, point)

        interleaved(run, SUITE, able, measure)


def _most(run: Run, subject: Subject) -> float | None:
    """What it drains in a second, from this run if it was measured, else by a trial; none when it cannot be run."""
    if known := run.results.spread(_KNOWN_AS, subject.name, "drain"):
        return known.median
    if subject.name not in (OURS, named("pgqueuer/best").name):
        return None
    try:
        return _TRIAL / publish_and_drain(run, subject, _TRIAL)[1]
    except Failed:
        return None


def _measure(run: Run, subject: Subject, turn: int, rate: float, point: str) -> Iterator[Measurement]:
    count = _count(rate, run.sizes.steady)
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        run.stores.settle()
        with Child(subject, "work", where, count=count, timed=True) as worker:
            worker.wait_for("started", 60)
            sent = ask(subject, "publish-steadily", where, rate=rate, lasting=run.sizes.steady)
            done = worker.wait_for("done", 180)
    check(count, done["ids"], done["settled"])
    handled = dict(zip(done["ids"], done["times"], strict=True))
    waits = [1000 * (handled[id] - due) for id, due in enumerate(sent["due"])]
    yield Measurement(SUITE, subject.name, "rate", count / sent["seconds"], "/s", turn, point, count)
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        yield Measurement(
            SUITE, subject.name, f"publish to done {name}", quantile(waits, share), "ms", turn, point, count
        )


def _count(rate: float, seconds: float) -> int:
    return round(rate * seconds)
