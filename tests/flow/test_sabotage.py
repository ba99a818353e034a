"""The oracle finds a broken engine in a run of real workers: each guard of a claim that is removed shows in the log."""

import asyncio
import time
from dataclasses import replace

import pytest

from tests.flow import worker
from tests.flow.log import Database
from tests.flow.oracle import Oracle
from tests.stores.flow_mutants import both
from tests.stores.mutation import Mutant, postgres, sqlite

_RUNNING = "f.status = 'in_flight'"
_NONE = f"{_RUNNING} and f.locked_by = ''"

BROKEN: dict[tuple[str, str], list[Mutant]] = {
    ("all_limited", "at once"): both("cap_limit", _RUNNING, _NONE),
    ("key_limited", "at once"): both("room_limit", _RUNNING, _NONE),
    ("queue mail", "at once"): both("cap_queue_limit", _RUNNING, _NONE),
    ("all_rated", " of 500 ms"): both("cap_rate", "s.flow_key = ''", "s.flow_key = 'other'"),
    ("key_rated", " of 500 ms"): both("room_rate", "s.flow_key = n.flow_key", "s.flow_key = 'other'"),
    ("skipped", "at once"): both("room_head", _RUNNING, _NONE),
    ("fair", "was paused"): both("room_pause", "p.flow_key = n.flow_key", "p.flow_key = 'other'"),
    ("debounced", " ran after "): [
        postgres("claim_debounced", "greatest(n.run_at, n.quiet_at) <= now()"),
        sqlite("claim_debounced", "max(d.run_at, d.created_at + :debounce) <= {now}"),
    ],
}
"""A violation, by the consumer and a part of the text, and the guard without which it happens, on both stores."""


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_missing_guard_is_found(dsn: str) -> None:
    database, hf = Database(dsn), worker.build(dsn)
    database.install()
    pairs = [mutant for pair in BROKEN.values() for mutant in pair]
    # Without its errors: the exceptions of pytest cannot be sent to another process.
    guards = [replace(mutant, errors=()) for mutant in pairs if dsn.startswith(mutant.database)]
    missing, number, ends = set(BROKEN), 0, time.monotonic() + 200
    async with worker.Workers(dsn, 2, slots=100, lease=10, sabotage=guards) as workers:
        await workers.registered(database)
        await hf.ops.pause_key("fair", "k0", actor="ada", force=True)
        while missing:
            assert time.monotonic() < ends, f"not found: {missing}"
            if not database.sql(
                "select 1 from {hf}delivery where status = 'pending' and consumer = 'all_limited' limit 1"
            ):
                # In parts that come within the quiet time: a key of one part alone is debounced even without its guard.
                for _ in range(6):
                    bodies = [{"k": f"k{n % 4}", "n": n} for n in range(number, number + 100)]
                    await hf.publish_many([(worker.EVENT, body) for body in bodies], conn=None)
                    number += len(bodies)
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            found = Oracle(worker.PROMISES, worker.QUEUES).read(database.records()).violations
            missing = {one for one in missing if not any(one[0] in text and one[1] in text for text in found)}
    await hf.close()
    print(f"{', '.join(name for name, _ in BROKEN)}: found after {number} messages")
