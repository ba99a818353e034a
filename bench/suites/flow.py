"""Flow control: a drain within limits, rates and order compared with the plain one, in one run."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from bench.measure import Measurement
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import OURS, Kind, Subject, named
from holdfast import Holdfast, Limit, Rate, WorkerOptions

SUITE = "flow"
_SLOTS = 500
_KEYS = {"fair": 1_000, "rate by key": 1_000, "limit 20 by key": 1_000}
_FEW_KEYS = 10_000
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limit": {"limit": Limit(5_000)},
    "rate": {"rate": Rate("1000000/10s")},
    "limit 20 by key": {"limit": Limit(20, by="key")},
    "limit 2 by key": {"limit": Limit(2, by="key")},
    "order": {"order_by": "key"},
    "fair": {"fair_by": "key"},
    "rate by key": {"rate": Rate("100000/10s", by="key")},
}


def flow_suite(run: Run) -> None:
    """Publishes and drains the same events with each option, on both stores."""

    def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
        count = run.sizes.snapshot
        for variant in VARIANTS:
            with run.stores.fresh(subject.kind) as where:
                published, drained = asyncio.run(publish_and_drain(where, variant, count, run.stores.settle))
            for metric, seconds in (("publish", published), ("drain", drained)):
                yield Measurement(SUITE, subject.name, metric, count / seconds, "/s", turn, variant, count)

    interleaved(run, SUITE, [named(OURS, kind) for kind in (Kind.POSTGRES, Kind.SQLITE)], measure)


async def publish_and_drain(where: str, variant: str, count: int, settle: Any = lambda: None) -> tuple[float, float]:
    """Seconds to publish and to drain so many events of 10,000 or 1,000 keys in one process."""
    hf, done, stop = Holdfast(where), 0, asyncio.Event()
    first = 0.0

    @hf.consumer("bench.happened", **VARIANTS[variant])
    async def handle(payload: dict[str, Any]) -> None:
        nonlocal done, first
        first = first or time.monotonic()
        done += 1
        if done == count:
            stop.set()

    if where.startswith("postgresql"):
        await asyncio.to_thread(hf.store.migrate)
    keys = _KEYS.get(variant, _FEW_KEYS)
    started = time.monotonic()
    for start in range(0, count, 1000):
        events = [
            ("bench.happened", {"key": f"k{n * 7919 % keys}", "n": n}) for n in range(start, min(count, start + 1000))
        ]
        await hf.publish_many(events, conn=None)
    published = time.monotonic() - started
    await asyncio.to_thread(settle)
    await hf.work(WorkerOptions(concurrency=_SLOTS, cron=False, grace=timedelta(seconds=60)), stop=stop)
    drained = time.monotonic() - first
    await hf.close()
    return published, drained
