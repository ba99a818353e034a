"""Cancels a job, or runs it until it is stopped: killed at named points. Arguments: the DSN, `cancel` or `work`, the id."""

import asyncio
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast import Context, Holdfast, RetryPolicy, WorkerOptions
from holdfast.app.jobs.job import ContextJob
from tests.engine.programs import crash


def build(dsn: str) -> tuple[Holdfast, ContextJob[[], Any]]:
    """A job that waits in its first run until the test allows it to end, and returns the number of the run."""
    hf = Holdfast(dsn)

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=20))
    async def long(ctx: Context) -> str:
        await asyncio.to_thread(crash.wait_at, "started")
        return f"run {ctx.attempt}"

    return hf, long


if __name__ == "__main__":
    crash.install()
    hf, job = build(sys.argv[1])
    if sys.argv[2] == "cancel":
        job.handle(UUID(sys.argv[3])).sync.cancel(actor="ada", reason="customer left")
    else:
        options = WorkerOptions(
            lease=timedelta(seconds=60), poll=timedelta(milliseconds=20), until_idle=True, cron=False
        )
        hf.run(until_idle=True, options=options)
