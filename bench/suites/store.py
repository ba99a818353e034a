"""A big store: what a claim and a settle cost among millions of rows, compared with an almost empty store."""

import time
from collections.abc import Iterator
from datetime import timedelta
from statistics import median
from typing import Any

import psycopg

from bench.check import Wrong
from bench.child import ask
from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Subject, named
from holdfast.stores.deliveries.claim import Claimed, Lane, claim
from holdfast.stores.dialect import Style
from holdfast.stores.operation import Query
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.store import PostgresStore

SUITE = "store"
_BATCH = 500
_CLAIMS = 40
_WORKER = "bench"
_ID, _FENCE = (Claimed._fields.index(name) for name in ("id", "fence"))
# Rows as `publish` leaves them; delivered ones as a worker does. Two statements for each chunk, all on the server.
_MESSAGES = """
insert into holdfast.message (id, type, source, payload, headers, generation, sub_epoch)
select uuidv7(), 'bench.happened', 'app', jsonb_build_object('id', n, 'pad', repeat('x', 80)), '{}', 0, 1
from generate_series(1, %(count)s::int) n
returning id
"""
_DELIVERIES = f"""
with stored as ({_MESSAGES})
insert into holdfast.delivery
  (id, message_id, consumer, queue, priority, generation, status, run_at, attempts, fence, completed_at)
select uuidv7(), s.id, 'bench0', 'default', 1, 0, %(status)s::text, now() + %(ahead)s::interval,
       (%(status)s::text = 'delivered')::int, (%(status)s::text = 'delivered')::int,
       case when %(status)s::text = 'delivered' then now() end
from stored s
"""
_CHUNK = 100_000


def store_suite(run: Run) -> None:
    """Creates the rows once. Every round claims and settles again, in the large and in the small store."""
    sizes = run.sizes
    few = _CLAIMS * _BATCH * (run.sizes.rounds + 1)
    contents = {
        "empty": (few, 0, 0),
        "big": (sizes.pending + few, sizes.pending, sizes.delivered),
    }
    subject = named(OURS)
    with run.stores.fresh(subject.kind) as empty, run.stores.fresh(subject.kind) as big:
        wheres = {"empty": empty, "big": big}
        for name, where in wheres.items():
            ask(subject, "setup", where)
            _fill(where, *contents[name])
            run.say(f"{SUITE}: filled the {name} store with {contents[name]} pending, scheduled and delivered")
        run.stores.settle()

        def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
            for name, where in wheres.items():
                claims, settles = _claim_and_settle(where)
                yield Measurement(SUITE, subject.name, "claim", claims, "ms", turn, name, sum(contents[name]))
                yield Measurement(SUITE, subject.name, "settle", settles, "ms", turn, name, sum(contents[name]))

        interleaved(run, SUITE, [subject], measure)


def _fill(where: str, pending: int, scheduled: int, delivered: int) -> None:
    with psycopg.connect(where, autocommit=True) as conn:
        for status, count, ahead in (
            ("delivered", delivered, timedelta(0)),
            ("pending", scheduled, timedelta(days=1)),
            ("pending", pending, timedelta(0)),
        ):
            for start in range(0, count, _CHUNK):
                values = {"count": min(_CHUNK, count - start), "status": status, "ahead": ahead}
                conn.execute(_DELIVERIES.encode(), values)
        # As autovacuum does in time.
        conn.execute("vacuum analyze holdfast.delivery")
        conn.execute("vacuum analyze holdfast.message")


def _claim_and_settle(where: str) -> tuple[float, float]:
    """The medians of so many claims and settles of a batch, in milliseconds."""
    dialect = PostgresDialect()
    took: dict[str, list[float]] = {"claim": [], "settle": []}
    lane = Lane("default", "bench0", 0, 1)
    store = PostgresStore(where)

    def timed(name: str, query: Query) -> list[Any]:
        text, values = next(dialect.expand(query, Style.PYFORMAT))
        given: Any = values
        started = time.monotonic()
        rows: list[Any] = conn.cursor(binary=True).execute(text.encode(), given).fetchall()
        took[name].append(1000 * (time.monotonic() - started))
        return rows

    # The store's own connection, with its session's settings.
    with store._pool.connection() as conn:
        for _ in range(_CLAIMS):
            rows = timed("claim", next(claim([lane], _WORKER, timedelta(seconds=30), _BATCH).start()))
            batch = {"delivery_id": [row[_ID] for row in rows], "fence": [row[_FENCE] for row in rows]}
            settled = timed("settle", Query("settle_delivered", {"worker": _WORKER}, {"settlements": batch}))
            if not len(rows) == len(settled) == _BATCH:
                raise Wrong(f"claimed {len(rows)} and settled {len(settled)} of {_BATCH}")
    store.close_sync()
    return median(took["claim"]), median(took["settle"])
