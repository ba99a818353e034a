"""Idle latency: one message at a time into an idle store, from its commit to the start of its handler."""

import time
from collections.abc import Iterator

from bench.check import check
from bench.child import Child, ask
from bench.measure import Measurement, quantile
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import Kind, Subject, chosen, one_each

SUITE = "latency"
_GAP = 0.03
_SETTLE_IN = 1.5
"""Seconds until a worker is surely idle and listening."""
_WARM = 5
"""The first ones connect and prepare, on both sides."""


def latency_suite(run: Run) -> None:
    """For comparison, the bare round trip: a commit, NOTIFY, and the claim that it wakes."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        from_commit, from_call = _latencies(run, subject)
        for metric, values in (("commit to start", from_commit), ("call to start", from_call)):
            for share, name in ((0.5, "p50"), (0.99, "p99")):
                found = quantile(values, share)
                yield Measurement(SUITE, subject.name, f"{metric} {name}", found, "ms", turn, count=len(values))

    interleaved(run, SUITE, one_each(chosen(Kind.POSTGRES, run.peers)), measure)


def idle_latencies(run: Run, subject: Subject) -> dict[str, float]:
    """Milliseconds from commit to start, p50 and p99."""
    from_commit, _ = _latencies(run, subject)
    return {"p50": quantile(from_commit, 0.5), "p99": quantile(from_commit, 0.99)}


def _latencies(run: Run, subject: Subject) -> tuple[list[float], list[float]]:
    """Milliseconds from the commit, and from the call, to the start of the handler, of each message."""
    count = run.sizes.latencies + _WARM
    with run.stores.fresh(subject.kind) as where:
        ask(subject, "setup", where)
        with Child(subject, "work", where, count=count, timed=True) as worker:
            worker.wait_for("started", 60)
            time.sleep(_SETTLE_IN)
            sent = ask(subject, "publish-slowly", where, count=count, gap=_GAP)
            done = worker.wait_for("done", 120)
    check(count, done["ids"], done["settled"])
    started = dict(zip(done["ids"], done["times"], strict=True))
    # A publisher's call returns after its commit; where NOTIFY goes with the commit the handler may be first.
    from_commit = [1000 * (started[id] - sent["returned"][id]) for id in range(_WARM, count)]
    from_call = [1000 * (started[id] - sent["began"][id]) for id in range(_WARM, count)]
    return from_commit, from_call
