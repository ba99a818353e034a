"""Carries a stored plan on and says so after every batch; the test kills it in between."""

import asyncio
import sys
from datetime import timedelta
from uuid import UUID

from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore


async def main(kind: str, address: str, id: str) -> None:
    store: Store = SqliteStore(address) if kind == "sqlite" else PostgresStore(address)
    ops = Operations(store)
    while (plan := await ops.advance_plan(UUID(id), runner="doomed", lease=timedelta(seconds=1))) is not None:
        print(plan.done, flush=True)
    await ops.store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
