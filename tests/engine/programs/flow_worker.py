"""A worker with a limit by key and an order by key, for the crash test of flow control: `python -m ... DSN`."""

import asyncio
import random
import sys
from datetime import timedelta
from typing import Any

from holdfast import Holdfast, Limit, RetryPolicy, Router, WorkerOptions

router = Router()
RETRY = RetryPolicy.fixed(attempts=50, delay="20ms")


async def run(payload: Any) -> None:
    await asyncio.sleep(random.uniform(0, 0.01))
    if random.random() < 0.1:
        raise RuntimeError("again")


@router.consumer("order.placed", limit=Limit(2, by="k"), retry=RETRY)
async def limited(payload: Any) -> None:
    await run(payload)


@router.consumer("order.placed", order_by="k", retry=RETRY)
async def ordered(payload: Any) -> None:
    await run(payload)


if __name__ == "__main__":
    hf = Holdfast(sys.argv[1])
    hf.include(router)
    hf.run(options=WorkerOptions(lease=timedelta(seconds=1), poll=timedelta(milliseconds=50), cron=False))
