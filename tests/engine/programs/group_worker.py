"""A worker of a group of jobs: killed at named points, or run until idle. Argument: the DSN."""

import asyncio
import sys
from datetime import timedelta

from holdfast import Context, GroupSummary, Holdfast, RetryPolicy, WorkerOptions
from holdfast.app.jobs.group import Group
from tests.engine.programs import crash
from tests.engine.ways import by_psycopg, by_sqlite3


def build(dsn: str, size: int = 12, pause: float = 0) -> tuple[Holdfast, Group]:
    """Every tenth job fails. The job after them counts its effect in the transaction of its settlement."""
    hf = Holdfast(dsn)
    open = by_sqlite3 if dsn.startswith("sqlite") else by_psycopg

    @hf.job(retry=RetryPolicy.fixed(0, attempts=50), dead_on=(ValueError,))
    async def part(n: int) -> None:
        crash.point("effect.started")
        await asyncio.sleep(pause)
        if n % 10 == 3:
            raise ValueError("broken")

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=50))
    def report(ctx: Context, summary: GroupSummary) -> None:
        with open(dsn) as (conn, execute):
            execute("insert into fired values (1)")
            counts = [summary.total, summary.done, summary.failed]
            ctx.sync.complete(conn=conn, result=counts)
            crash.point("effect.completed")

    group = hf.group([part.call(n) for n in range(size)], on_failure="run").then(report)
    return hf, group


if __name__ == "__main__":
    crash.install()
    options = WorkerOptions(lease=timedelta(seconds=1), poll=timedelta(milliseconds=20), until_idle=True, cron=False)
    build(sys.argv[1])[0].run(until_idle=True, options=options)
