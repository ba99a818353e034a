"""An old snapshot held open: what it does to throughput, and what the care against it costs ordinary transactions."""

import contextlib
from collections.abc import Iterator

import psycopg

from bench.child import Child, ask
from bench.measure import Measurement, quantile
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, chosen, named
from bench.suites.drain import publish_and_drain

SUITE = "snapshot"
_HOLD = 0.05
_CONNECTIONS = 20
_BACKGROUND = 500.0
_ELSEWHERE = 10_000_000
"""Ids of the background's messages begin here."""


def snapshot_suite(run: Run) -> None:
    """The same drain without and with a snapshot that is older than every delivery; then business transactions."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        count = run.sizes.snapshot
        for point in ("without", "with"):
            held = holding if point == "with" else unheld
            _, seconds = publish_and_drain(run, subject, count, around=held)
            yield Measurement(SUITE, subject.name, "drain", count / seconds, "/s", turn, point, count)
        if subject.peer == OURS:
            yield from _business(run, subject, turn)

    wanted = [one for one in chosen(Kind.POSTGRES, run.peers) if one in (named(OURS), named("pgqueuer/best"))]
    interleaved(run, SUITE, wanted, measure, rounds=2)


def unheld(where: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def holding(where: str) -> Iterator[None]:
    """Keeps the database's dead rows for as long as it is open."""
    with psycopg.connect(where) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("select pg_current_xact_id()")
        yield
        conn.rollback()


def _business(run: Run, subject: Subject, turn: int) -> Iterator[Measurement]:
    """Transactions of 50 ms next to a stream of others: from commit to the start of the handler, without a snapshot."""
    count = run.sizes.transactions
    seconds = count * _HOLD / _CONNECTIONS * 1.5
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        background = round(_BACKGROUND * seconds)
        with Child(subject, "work", where, count=count + background, timed=True) as worker:
            worker.wait_for("started", 60)
            with Child(
                subject, "publish-steadily", where, rate=_BACKGROUND, lasting=seconds, first=_ELSEWHERE
            ) as stream:
                committed = ask(subject, "business", where, count=count, hold=_HOLD, connections=_CONNECTIONS)[
                    "committed"
                ]
                stream.wait_for("done", 300)
            done = worker.wait_for("done", 120)
    started = dict(zip(done["ids"], done["times"], strict=True))
    waits = [1000 * (started[id] - committed[id]) for id in range(count)]
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        yield Measurement(
            SUITE, subject.name, f"commit to claim {name}", quantile(waits, share), "ms", turn, count=count
        )
