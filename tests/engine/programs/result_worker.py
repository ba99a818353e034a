"""A worker whose jobs keep their results: killed at named points, or run until idle. Argument: the DSN."""

import sys
from datetime import timedelta
from typing import Any

from holdfast import Context, Holdfast, Job, RetryPolicy, WorkerOptions
from tests.engine.programs import crash
from tests.engine.ways import by_psycopg, by_sqlite3


def build(dsn: str) -> tuple[Holdfast, dict[str, Job[[int], Any]]]:
    """Jobs that return their result, commit it with `ctx.complete`, and keep no rows; the result is the number of the run."""
    hf = Holdfast(dsn)
    open = by_sqlite3 if dsn.startswith("sqlite") else by_psycopg

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=20))
    async def returns(ctx: Context, n: int) -> Any:
        return [n, ctx.fence]

    @hf.job(result="1h", retry=RetryPolicy.fixed(0, attempts=20))
    def completes(ctx: Context, n: int) -> None:
        with open(dsn) as (conn, _):
            ctx.sync.complete(conn=conn, result=[n, ctx.fence])
            crash.point("effect.completed")
        crash.point("effect.committed")

    @hf.job(result="1h", keep="0", retry=RetryPolicy.fixed(0, attempts=20))
    async def removes(ctx: Context, n: int) -> Any:
        return [n, ctx.fence]

    return hf, {"returns": returns, "completes": completes, "removes": removes}


if __name__ == "__main__":
    crash.install()
    options = WorkerOptions(lease=timedelta(seconds=1), poll=timedelta(milliseconds=20), until_idle=True, cron=False)
    build(sys.argv[1])[0].run(until_idle=True, options=options)
