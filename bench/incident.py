"""A store with an incident of known size: a million deliveries, of which 100,200 died in the last hour in five groups.

`GROUPS` and `died_per_minute` are the truth to compare figures with. The data is unfavourable on purpose: the newest
dead letters did not die last, the largest group comes late by fingerprint, and the dead letters among the deliveries of
one minute lie together, so a count that ends early and a sample of the first rows both show.
"""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import NamedTuple

import orjson
import psycopg

from holdfast.core.retry import RetryPolicy
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

ROWS = 1_000_000
RARE = 20
"""How many deliveries, the oldest ones, are of a type and a consumer that nothing else has; as many of the oldest dead
letters are of that type."""

_SPAN = timedelta(hours=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TENANTS = 40
_WAITING = 100
"""One in so many deliveries is still pending; they are the newest."""


class Group(NamedTuple):
    """Dead letters that failed alike; they died evenly spread from `first` to `last` minutes before the incident's end."""

    fingerprint: str
    consumer: str
    queue: str
    error_type: str
    size: int
    first: float
    last: float


GROUPS = (
    Group("d1fa11ed00000001", "billing", "default", "CardDeclined", 60_000, 14.0, 9.0),
    Group("c1fa11ed00000002", "mail", "slow", "SMTPError", 25_000, 50.0, 2.0),
    Group("b1fa11ed00000003", "billing", "default", "KeyError", 10_000, 31.5, 30.5),
    Group("a1fa11ed00000004", "search", "slow", "ReadTimeout", 5_000, 45.0, 20.0),
    Group("e1fa11ed00000005", "export", "default", "ValueError", 200, 48.0, 3.0),
)
"""The groups in a store of `ROWS` deliveries, largest first."""


class Death(NamedTuple):
    """When a delivery died, and of what."""

    group: Group
    at: datetime


class Incident:
    """The deliveries of one incident that ends at `now`; every group has `share` of its size, by default that of `rows`."""

    def __init__(self, now: datetime, rows: int = ROWS, share: float | None = None) -> None:
        self.now, self.rows = now, rows
        share = rows / ROWS if share is None else share
        self.groups = tuple(group._replace(size=max(1, round(group.size * share))) for group in GROUPS)
        self.deaths = [
            Death(group, now - timedelta(minutes=group.first + (group.last - group.first) * n / group.size))
            for group in self.groups
            for n in range(group.size)
        ]
        random.Random(0).shuffle(self.deaths)

    @property
    def died_per_minute(self) -> dict[datetime, int]:
        """How many died in which minute."""
        return dict(Counter(death.at.replace(second=0, microsecond=0) for death in self.deaths))

    @property
    def accepted_per_minute(self) -> dict[datetime, int]:
        """How many deliveries were made in which minute."""
        return dict(Counter(self.made_at(n).replace(second=0, microsecond=0) for n in range(self.rows)))

    def made_at(self, n: int) -> datetime:
        return self.now - _SPAN + n * _SPAN / self.rows

    def deliveries(self) -> Iterator[tuple[int, datetime, Death | None]]:
        """Each delivery's number, when it was made, and how it died if it did."""
        block = max(1, self.rows // 100)
        share = ceil(len(self.deaths) / 100)
        dead = iter(self.deaths)
        for n in range(self.rows):
            lies_dead = n % block >= block - share
            yield n, self.made_at(n), next(dead, None) if lies_dead else None

    def ids(self, n: int, at: datetime) -> tuple[str, str]:
        """The ids of message and delivery; like real ones they begin with their time and share their first half."""
        stamp = f"{(at - _EPOCH) // timedelta(milliseconds=1):012x}"
        head = f"{stamp[:8]}-{stamp[8:]}-7{n // 65536 % 4096:03x}"
        tail = f"{n % 65536:04x}"
        return f"{head}-8{tail[1:]}-0000{n:08x}", f"{head}-9{tail[1:]}-0000{n:08x}"

    def rows_of(self, n: int, at: datetime, death: Death | None) -> tuple[tuple[object, ...], tuple[object, ...]]:
        message, delivery = self.ids(n, at)
        waits = death is None and n >= self.rows - self.rows // _WAITING
        ended = death.at if death else None if waits else at + timedelta(seconds=1)
        group = death.group if death else None
        oldest_dead = self.rows // 100 - ceil(len(self.deaths) / 100)
        type = "rare.thing" if n < RARE or (death and n < oldest_dead + RARE) else "order.placed"
        return (
            (message, type, "shop", f'{{"n":{n}}}', f'{{"tenant":"t{n % _TENANTS}"}}', 3, at, 1),
            (
                delivery,
                message,
                group.consumer if group else "rare" if n < RARE else "billing",
                group.queue if group else "default",
                1,
                3,
                "failed" if group else "pending" if waits else "delivered",
                at,
                0 if waits else 1,
                0 if waits else 1,
                at,
                ended,
                ended if group else None,
                group.fingerprint if group else None,
                group.error_type if group else None,
                f"{group.error_type} for order {n}" if group else None,
                type if group else None,
            ),
        )


_MESSAGE = ("id", "type", "source", "payload", "headers", "generation", "occurred_at", "sub_epoch")
_DELIVERY = (
    *("id", "message_id", "consumer", "queue", "priority", "generation", "status", "run_at", "attempts", "fence"),
    *("created_at", "completed_at", "first_failed_at", "fingerprint", "error_type", "last_error", "failed_type"),
)


def fill(store: Store, rows: int = ROWS, share: float | None = None) -> Incident:
    """Writes an incident that ends now into a migrated store, and returns it."""
    incident = Incident(datetime.now(UTC), rows, share)
    pairs = [incident.rows_of(*one) for one in incident.deliveries()]
    tables = {"message": (_MESSAGE, [pair[0] for pair in pairs]), "delivery": (_DELIVERY, [pair[1] for pair in pairs])}
    consumers = {(group.consumer, group.queue) for group in incident.groups}
    tables["consumer"] = (
        ("name", "queue", "priority", "max_attempts", "retry", "generation"),
        [
            (name, queue, 1, 5, orjson.dumps(RetryPolicy.exponential().to_json()).decode(), 3)
            for name, queue in sorted(consumers)
        ],
    )
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.conninfo, autocommit=True) as connection:
            for table, (names, values) in tables.items():
                text = f"copy {store.dialect.prefix}{table} ({', '.join(names)}) from stdin"
                with connection.cursor().copy(text.encode()) as copy:
                    for value in values:
                        copy.write_row(value)
            connection.execute("vacuum (analyze)")
    else:
        assert isinstance(store, SqliteStore)
        with sqlite3.connect(store.path) as database:
            for table, (names, values) in tables.items():
                marks = ", ".join("?" * len(names))
                database.executemany(
                    f"insert into {store.dialect.prefix}{table} ({', '.join(names)}) values ({marks})",
                    (tuple(map(_stored, value)) for value in values),
                )
    return incident


def _stored(value: object) -> object:
    """A value as SQLite keeps it: a time is cut to milliseconds, so that it stays in its minute."""
    return (value - _EPOCH) // timedelta(milliseconds=1) if isinstance(value, datetime) else value
