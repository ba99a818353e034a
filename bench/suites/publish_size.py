"""Publish by batch size and driver: messages per second of one publisher, each batch committed before the next begins."""

from collections.abc import Iterator

from bench.child import ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import JOINED, OURS, Kind, Subject, chosen, named

SUITE, METRIC = "publish-size", "publish"
BATCHES = (1, 10, 100, 1000, 5000)
_STRONGEST = "pgqueuer"


def publish_size_suite(run: Run) -> None:
    """Ours on its own connection and in a caller's transaction by driver, compared with the fastest peer."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            run.stores.settle()
            lasting = run.sizes.seconds / 10
            rates = ask(subject, "publish-batches", where, batches=BATCHES, lasting=lasting)["rates"]
        for batch in BATCHES:
            yield Measurement(SUITE, subject.name, METRIC, rates[str(batch)], "/s", turn, str(batch))

    peers = [one for one in chosen(Kind.POSTGRES, run.peers) if one.peer == _STRONGEST][:1]
    interleaved(run, SUITE, [named(OURS), *JOINED, *peers], measure)
