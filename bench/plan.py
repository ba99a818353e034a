"""How much is measured: the sizes of a run, and the time it may take."""

import time
from dataclasses import dataclass, field

from bench.measure import Results
from bench.servers import Stores
from bench.subject import Subject


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the short and the full form differ in."""

    rounds: int
    seconds: float
    """About how long one subject publishes and drains in a round; starting its processes takes some more."""
    drain: int
    """At least so many for ours, the bound and the strongest peer."""
    transactions: int
    latencies: int
    steady: float
    """Seconds of steady load."""
    pending: int
    delivered: int
    snapshot: int
    held: float
    """Seconds that a transaction is held open under load, and the same before and after."""
    memory: int
    growth: int
    calls: int
    records: int
    """Through each broker, in and out; fewer than the backlog at which an intake waits for its workers."""
    runs: int
    """Runs of a workflow with three steps."""
    peer_runs: int
    """The same of a peer, which takes longer for each."""
    defaults: bool
    """Whether peers are measured by their defaults too, and not by their best settings alone."""
    minutes: float
    """When it has taken so long, rounds that are left are given up, and the report says so."""


SHORT = Sizes(
    rounds=1,
    seconds=3,
    drain=20_000,
    transactions=300,
    latencies=50,
    steady=3,
    pending=50_000,
    delivered=100_000,
    snapshot=40_000,
    held=3,
    memory=50_000,
    growth=10_000,
    calls=50_000,
    records=5_000,
    runs=3_000,
    peer_runs=300,
    defaults=False,
    minutes=10,
)
FULL = Sizes(
    rounds=5,
    seconds=10,
    drain=100_000,
    transactions=5000,
    latencies=120,
    steady=10,
    pending=1_000_000,
    delivered=3_000_000,
    snapshot=500_000,
    held=60,
    memory=1_000_000,
    growth=30_000,
    calls=300_000,
    records=9_000,
    runs=20_000,
    peer_runs=2_000,
    defaults=True,
    minutes=88,
)


@dataclass(slots=True)
class Run:
    """One run of the harness: what it measures with, how much, and what it has found so far."""

    stores: Stores
    sizes: Sizes
    results: Results
    peers: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """Revisions that the working tree is compared with."""
    started: float = field(default_factory=time.monotonic)
    left_out: set[Subject] = field(default_factory=set)
    """Missing, unable or broken: not tried again."""

    @property
    def out_of_time(self) -> bool:
        return self.minutes > self.sizes.minutes

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def say(self, text: str) -> None:
        print(f"[{self.minutes:5.1f} min] {text}", flush=True)
