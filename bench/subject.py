"""What is measured: Holdfast, the bare loop, and every peer by its own best documented settings and by its defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Kind(StrEnum):
    """The store a subject runs on."""

    POSTGRES = "postgres"
    REDIS = "redis"
    SQLITE = "sqlite"


OURS, BOUND = "holdfast", "bare"


@dataclass(frozen=True, slots=True)
class Subject:
    """One system with one set of settings. `environment` is None for what runs in the project's own."""

    peer: str
    variant: str
    kind: Kind
    environment: str | None
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    sync: bool = False
    """Its handlers are plain functions: it has no async ones."""
    revision: str | None = None
    """The commit that this subject is; None for the working tree."""

    @property
    def name(self) -> str:
        return f"{self.peer}/{self.variant}" if self.variant != "default" else self.peer

    @property
    def module(self) -> str:
        # The bare loop on SQLite is a separate program; the peers choose by their DSN.
        return (
            "bench.peers.bare_sqlite" if self.peer == BOUND and self.kind is Kind.SQLITE else f"bench.peers.{self.peer}"
        )


def _postgres(peer: str, variant: str = "default", **settings: Any) -> Subject:
    return Subject(peer, variant, Kind.POSTGRES, None if peer in (OURS, BOUND) else peer, settings)


def _redis(peer: str, variant: str = "default", *, sync: bool = False, **settings: Any) -> Subject:
    return Subject(peer, variant, Kind.REDIS, peer, settings, sync)


def _sqlite(peer: str, variant: str = "default", *, sync: bool = False, **settings: Any) -> Subject:
    return Subject(peer, variant, Kind.SQLITE, None if peer in (OURS, BOUND) else peer, settings, sync)


SUBJECTS: tuple[Subject, ...] = (
    _postgres(OURS),
    _postgres(OURS, "wide", concurrency=1000),
    _postgres(BOUND),
    _postgres("pgqueuer", "best", batch_size=500),
    _postgres("pgqueuer", "wide", batch_size=1000),
    _postgres("pgqueuer"),
    _postgres("awa", "best", queue={"max_workers": 1000, "claimers": 2, "claim_batch_size": 500}),
    _postgres("awa"),
    _postgres("oban", "best", slots=100, pool=20),
    _postgres("oban"),
    _postgres("procrastinate", "best", concurrency=20, pool=20),
    _postgres("procrastinate"),
    _postgres("saq", "best", concurrency=50, pool=20, publishers=20),
    _postgres("saq"),
    _postgres("dbos", "best", polling_interval_sec=0.05, pool=20, publishers=10),
    _postgres("dbos"),
    _postgres("chancy", "best", concurrency=500, eager_polling=True, polling_interval=1, send_outgoing_interval=0.05),
    _postgres("chancy"),
    _postgres("absurd", "best", concurrency=50, batch_size=50),
    _postgres("absurd"),
    _redis("celery", "best", sync=True, worker={"pool": "solo"}, app={"worker_prefetch_multiplier": 500}),
    _redis("celery", sync=True, worker={"pool": "threads"}),
    _redis("dramatiq", "best", sync=True, worker_threads=4, prefetch=200),
    _redis("dramatiq", sync=True),
    _redis("taskiq", "best", max_async_tasks=100, max_prefetch=100, publishers=20),
    _redis("taskiq"),
    _redis("arq", "best", max_jobs=100, poll_delay=0.01, queue_read_limit=500, keep_result=0, publishers=20),
    _redis("arq"),
    _redis("streaq", "best", concurrency=100, prefetch=500),
    _redis("streaq"),
    _sqlite(OURS),
    _sqlite(OURS, "wide", concurrency=1000),
    _sqlite(BOUND),
    _sqlite("huey", "best", sync=True, huey={"results": False}, initial_delay=0.001),
    _sqlite("huey", sync=True),
    _sqlite("dbos", "best", polling_interval_sec=0.05),
    _sqlite("dbos"),
)


IN_ASYNCPG = _postgres(OURS, "asyncpg", driver="asyncpg")
"""Ours in a caller's transaction on the driver that the fastest peers use."""


JOINED = (
    _postgres(OURS, "psycopg transaction", driver="psycopg", joins=True),
    _postgres(OURS, "asyncpg transaction", driver="asyncpg", joins=True),
)
"""Ours with batches in a caller's transaction, by driver."""


BATCHED = {Kind.POSTGRES: _postgres(OURS, "batch", batch=100), Kind.SQLITE: _sqlite(OURS, "batch", batch=100)}
"""Ours with a handler that takes lists of 100."""


WORKFLOWS = (
    _postgres(OURS, three_steps=True),
    _postgres("dbos", "best", three_steps=True, polling_interval_sec=0.05, pool=20, publishers=10),
    _postgres("absurd", "best", three_steps=True, concurrency=50, batch_size=50),
)
"""A workflow of three steps, whose results are stored."""


def one_each(subjects: "list[Subject]") -> list[Subject]:
    """The first variant of each peer: its best, and of ours the defaults."""
    first: dict[str, Subject] = {}
    for subject in subjects:
        first.setdefault(subject.peer, subject)
    return list(first.values())


def named(name: str, kind: Kind = Kind.POSTGRES) -> Subject:
    """The subject of this name."""
    return next(one for one in SUBJECTS if one.kind is kind and one.name == name)


def chosen(kind: Kind, peers: tuple[str, ...] = ()) -> list[Subject]:
    """The subjects of one kind of store; ours and the bound are always among them."""
    wanted = {OURS, BOUND, *peers}
    return [one for one in SUBJECTS if one.kind is kind and (not peers or one.peer in wanted or one.name in wanted)]
