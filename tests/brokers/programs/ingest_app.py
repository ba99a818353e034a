"""An app that ingests a stream as events, with two consumers that each have an effect."""

from typing import Any

from holdfast import Context, Holdfast, RetryPolicy
from tests.brokers.programs.app import PointedSource, built
from tests.engine.programs.shop import spelled, transaction

INGEST, SUBSCRIBERS = "in", ("mail", "billing")


def build(dsn: str, source: Any, stream: str) -> Holdfast:
    hf = Holdfast(dsn)
    hf.ingest(PointedSource(source(stream, INGEST), INGEST), as_="payment.settled", key="n", name=INGEST)

    def pay(ctx: Context, payment: dict[str, Any]) -> None:
        with transaction(dsn) as db:
            values = (ctx.consumer, payment["n"])
            db.execute(spelled(dsn, "insert into effect (consumer, n) values (?, ?)"), values)
            ctx.sync.complete(conn=db)

    for name in SUBSCRIBERS:
        retry = RetryPolicy.exponential(attempts=60, base=0.05, cap=0.5)
        hf.consumer("payment.settled", name=name, retry=retry)(pay)
    return hf


hf = built(build)
