"""One publish inside a caller's transaction that also writes an application row: transactions per second."""

from collections.abc import Iterator

from bench.child import ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import IN_ASYNCPG, Kind, Subject, chosen, one_each

SUITE = "transact"


def transact_suite(run: Run) -> None:
    """One connection, one transaction after the other, each durable before the next begins."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        count = run.sizes.transactions
        with run.stores.fresh(subject.kind) as where:
            ask(subject, "setup", where)
            run.stores.settle()
            seconds = ask(subject, "transact", where, count=count)["seconds"]
        yield Measurement(SUITE, subject.name, "transactions", count / seconds, "/s", turn, count=count)

    # Side by side with those it is compared with: a machine that slows down in between must not decide.
    interleaved(run, SUITE, [IN_ASYNCPG, *one_each(chosen(Kind.POSTGRES, run.peers))], measure)
