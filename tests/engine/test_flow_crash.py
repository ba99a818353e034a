"""Flow control while workers are killed: a log that a trigger writes is read by an oracle that knows nothing of the engine."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import closing

import psycopg
import pytest

from holdfast import Holdfast
from tests.engine.programs.flow_worker import router
from tests.servers.postgres import PostgresServer
from tests.servers.tables import migrated

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

_TRIGGER = """
create table flow_log (n bigserial primary key, consumer text, key text, seq bigint, event text, id uuid);
create function log_flow() returns trigger language plpgsql as $$
begin
  if new.status = 'in_flight' and old.status = 'pending' then
    insert into flow_log (consumer, key, seq, event, id) values (new.consumer, new.flow_key, new.flow_seq, 'claim', new.id);
  elsif old.status = 'in_flight' and new.status <> 'in_flight' then
    insert into flow_log (consumer, key, seq, event, id) values (new.consumer, new.flow_key, new.flow_seq, 'end', new.id);
  end if;
  return new;
end $$;
create trigger log_flow after update on holdfast.delivery for each row execute function log_flow();
"""


def violations(log: list[tuple[str, str, int | None, str, object]]) -> list[str]:
    """What the log shows against the promises: more than two of a key at once, or an ordered key out of order."""
    running: defaultdict[tuple[str, str], set[object]] = defaultdict(set)
    last: dict[str, int] = {}
    found = []
    for consumer, key, seq, event, id in log:
        held = running[consumer, key]
        if event == "end":
            held.discard(id)
            continue
        held.add(id)
        if len(held) > (2 if consumer == "limited" else 1):
            found.append(f"{len(held)} of {consumer} {key} at once")
        if consumer == "ordered":
            assert seq is not None
            if seq < last.get(key, 0):
                found.append(f"{key}: {seq} after {last[key]}")
            last[key] = seq
    return found


@pytest.mark.parametrize(("messages", "kills"), [(600, 8), pytest.param(20_000, 200, marks=pytest.mark.soak)])
async def test_limits_and_order_hold_while_workers_are_killed(
    postgres18: PostgresServer, messages: int, kills: int
) -> None:
    dsn = migrated(postgres18, f"flow_crash_{messages}")
    with closing(psycopg.connect(dsn, autocommit=True)) as conn:
        conn.execute(_TRIGGER)
        workers = [_start(dsn) for _ in range(3)]
        try:
            hf = Holdfast(dsn)
            hf.include(router)
            for start in range(0, messages, 100):
                numbers = range(start, min(messages, start + 100))
                await hf.publish_many([("order.placed", {"k": f"k{n % 7}", "n": n}) for n in numbers], conn=None)
            for _ in range(kills):
                await asyncio.sleep(random.uniform(0.3, 0.8))
                victim = workers.pop(random.randrange(len(workers)))
                victim.kill()
                victim.wait()
                workers.append(_start(dsn))
            deadline = time.monotonic() + 90 + messages / 20
            while conn.execute("select 1 from holdfast.delivery where status <> 'delivered' limit 1").fetchone():
                assert time.monotonic() < deadline, "the limits were not reached again"
                await asyncio.sleep(0.2)
            await hf.close()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        log = conn.execute("select consumer, key, seq, event, id from flow_log order by n").fetchall()
    claims = Counter(row[0] for row in log if row[3] == "claim")
    assert min(claims["limited"], claims["ordered"]) >= messages
    assert violations(log) == []
    postgres18.drop_database(f"flow_crash_{messages}")


def test_the_oracle_finds_what_breaks_a_promise() -> None:
    assert violations([("limited", "a", None, "claim", n) for n in range(3)]) == ["3 of limited a at once"]
    out_of_order = [("ordered", "a", 2, "claim", 1), ("ordered", "a", 2, "end", 1), ("ordered", "a", 1, "claim", 2)]
    assert violations(list(out_of_order)) == ["a: 1 after 2"]


def _start(dsn: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.engine.programs.flow_worker", dsn]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
