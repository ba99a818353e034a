"""A transaction held open while a worker is nearly saturated: latency before, during and after, dead tuples, recovery."""

import time
from collections.abc import Iterator, Sequence

import psycopg

from bench.check import check
from bench.child import Child, ask
from bench.measure import Measurement, quantile
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, named
from bench.suites.drain import publish_and_drain
from bench.suites.snapshot import holding

SUITE = "held"
_SHARE = 0.8
"""Load as a share of what the same worker drains in this run."""
_TRIAL = 20_000
_DEAD = "select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables where schemaname = 'holdfast'"
_WINDOW = 0.5


def held_suite(run: Run) -> None:
    """Latency is from when a message was due until its handler ran. Recovered: a window of half a second whose p50 is at most
    twice the one before."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        rate = _SHARE * _TRIAL / publish_and_drain(run, subject, _TRIAL)[1]
        phase = run.sizes.held
        count = round(rate * 3 * phase)
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            run.stores.settle()
            with Child(subject, "work", where, count=count, timed=True) as worker:
                worker.wait_for("started", 60)
                with Child(subject, "publish-steadily", where, rate=rate, lasting=3 * phase) as publisher:
                    publisher.wait_for("started", 60)
                    time.sleep(phase)
                    with holding(where):
                        begun = time.monotonic()
                        time.sleep(phase)
                        dead = _dead_tuples(where)
                        released = time.monotonic()
                    sent = publisher.wait_for("done", 600)
                done = worker.wait_for("done", 600)
            check(count, done["ids"], done["settled"])
        handled = dict(zip(done["ids"], done["times"], strict=True))
        due = sent["due"]
        waits = [1000 * (handled[id] - at) for id, at in enumerate(due)]
        # Without the first third, in which the worker catches up with its own start.
        settled = due[0] + phase / 3
        edges = (settled, begun, released, float("inf"))
        p50 = {}
        for phase_name, low, high in zip(("before", "held", "after"), edges[:-1], edges[1:], strict=True):
            inside = [wait for wait, at in zip(waits, due, strict=True) if low <= at < high]
            ended = sum(1 for at in done["times"] if low <= at < high)
            for share, name in ((0.5, "p50"), (0.99, "p99")):
                value = p50[phase_name, name] = quantile(inside, share)
                yield Measurement(SUITE, subject.name, f"due to handled {name}", value, "ms", turn, phase_name)
            if phase_name != "after":  # its end depends on when the publisher ended
                yield Measurement(SUITE, subject.name, "handled", ended / (high - low), "/s", turn, phase_name)
        in_time = sum(1 for at in done["times"] if at < released)
        yield Measurement(SUITE, subject.name, "dead tuples per job", dead / in_time, "", turn)
        recovered = _recovery(due, waits, released, 2 * p50["before", "p50"])
        yield Measurement(SUITE, subject.name, "recovered after", recovered, "s", turn)

    interleaved(run, SUITE, [named(OURS, Kind.POSTGRES)], measure)


def _recovery(due: Sequence[float], waits: Sequence[float], released: float, limit: float) -> float:
    """Seconds until the median of a window is within the limit; to the end of the load if none is."""
    start = released
    while inside := [wait for wait, at in zip(waits, due, strict=True) if start <= at < start + _WINDOW]:
        if quantile(inside, 0.5) <= limit:
            break
        start += _WINDOW
    return start - released


def _dead_tuples(where: str) -> float:
    with psycopg.connect(where, autocommit=True) as conn:
        # Sessions report at the end of a transaction, at most once per second.
        time.sleep(1.1)
        row = conn.execute(_DEAD.encode()).fetchone()
    assert row is not None
    return float(row[0])
