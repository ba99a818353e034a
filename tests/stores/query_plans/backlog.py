"""Tables of a size that a plan can go wrong on, filled by the database itself within seconds."""

from dataclasses import dataclass, replace

import psycopg

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore

_MESSAGES = """
insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch)
select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
       'order.placed', 'shop', jsonb_build_object('n', n), '{}', 0, 1
from generate_series(1, %(messages)s) n
"""
# The id shares its first half with the message's, as it does in the real thing; the rest only has to differ.
_DELIVERIES = """
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, status, run_at, attempts, fence,
                          locked_by, lease_until, completed_at, discarded_at, fingerprint, error_type, last_error,
                          failed_type)
select (lpad(to_hex(1700000000000 + n), 12, '0') || '70009' || lpad(to_hex(%(slot)s::int), 2, '0')
          || lpad(to_hex(n), 13, '0'))::uuid,
       (lpad(to_hex(1700000000000 + n), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
       %(consumer)s, %(queue)s, n %% 4, 0, %(status)s, now() + %(due)s::interval + n * interval '1 ms',
       (%(status)s <> 'pending')::int, (%(status)s <> 'pending')::int,
       case when %(status)s = 'in_flight' then 'worker-' || n %% 4 end,
       case when %(status)s = 'in_flight' then now() + interval '1 hour' end,
       case when %(status)s in ('delivered', 'failed') then now() - interval '30 days' end,
       case when %(status)s = 'failed' and n %% 10 = 0 then now() end,
       case when %(status)s = 'failed' then 'fingerprint-' || n %% 7 end,
       case when %(status)s = 'failed' then 'ValueError' end,
       case when %(status)s = 'failed' then repeat('x', 200) end,
       case when %(status)s = 'failed' then 'order.placed' end
from generate_series(1, %(rows)s) n
"""
_RUNS = """
insert into {hf}run (delivery_id, fence, attempt, outcome, worker)
select d.id, d.fence, d.attempts, 'unknown', 'w0' from {hf}delivery d where d.status in ('delivered', 'failed')
"""
_SQLITE_NUMBERS = "with recursive number(n) as (select 1 union all select n + 1 from number where n < {rows}) "
_SQLITE_MESSAGES = """
insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch)
{numbers} select printf('018b%04x-%04x-7000-8000-%012x', n / 65536, n % 65536, n), 'order.placed', 'shop', '{}', '{}', 0, 1 from number
"""
_SQLITE_DELIVERIES = """
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, status, run_at, locked_by, lease_until,
                          completed_at, fingerprint, failed_type)
{numbers}
select printf('018b%04x-%04x-7000-9{slot:03x}-%012x', n / 65536, n % 65536, n), printf('018b%04x-%04x-7000-8000-%012x', n / 65536, n % 65536, n),
       '{consumer}', '{queue}', n % 4, 0, '{status}', n, case when '{status}' = 'in_flight' then 'worker' end,
       case when '{status}' = 'in_flight' then 1 end, case when '{status}' in ('delivered', 'failed') then 1 end,
       case when '{status}' = 'failed' then 'fingerprint-' || n % 7 end,
       case when '{status}' = 'failed' then 'order.placed' end
from number
"""
FLOW_KEYS = 20_000
# All deliveries are of one message: a claim reads it once for each.
_FLOW_MESSAGE = """
insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch)
values ('01890000-0000-7000-8000-000000000000', 'order.placed', 'shop', '{}', '{}', 0, 1)
"""
_FLOW_DELIVERIES = """
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, run_at, created_at, status, completed_at,
                          locked_by, lease_until, attempts, flow_key, flow_seq, flow_ticket)
select (lpad(to_hex(1700000000000 + n), 12, '0') || '7000' || %(slot)s || lpad(to_hex(n), 15, '0'))::uuid,
       '01890000-0000-7000-8000-000000000000', %(consumer)s, 'default', 1, 0,
       now() - interval '1 day' + n * interval '1 ms', now() - interval '1 day' + n * interval '1 ms', %(status)s,
       case when %(status)s = 'failed' then now() end, case when %(status)s = 'in_flight' then 'w1' end,
       case when %(status)s = 'in_flight' then now() + interval '1 h' end, (%(status)s <> 'pending')::int,
       'tenant-' || lpad((n %% %(keys)s)::text, 6, '0'), case when %(consumer)s = 'ordered' then %(place)s + n end,
       case when %(status)s = 'in_flight' then nextval('{hf}flow_ticket') end
from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""


@dataclass(frozen=True)
class Heap:
    """Deliveries that are alike: whose, in which state, due since when (an interval)."""

    consumer: str
    rows: int
    status: str = "pending"
    queue: str = "default"
    due: str = "-1 day"

    def __mul__(self, factor: int) -> "Heap":
        return replace(self, rows=self.rows * factor)


def pile(store: PostgresStore, *heaps: Heap, analyze: bool = True) -> None:
    """Fills the tables; the heaps share their messages, as the consumers of one event do."""
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        messages = max(heap.rows for heap in heaps)
        connection.execute(_filled(store, _MESSAGES), {"messages": messages})
        for slot, heap in enumerate(heaps):
            connection.execute(_filled(store, _DELIVERIES), {"slot": slot, **vars(heap)})
        connection.execute(_filled(store, _RUNS))
        if analyze:
            connection.execute("vacuum (analyze)")


def pile_sqlite(store: SqliteStore, *heaps: Heap) -> None:
    """`pile`, without statistics: an embedded database is not analyzed."""
    from tests.support.builders import sql

    messages = max(heap.rows for heap in heaps)
    sql(store, _SQLITE_MESSAGES.replace("{numbers}", _SQLITE_NUMBERS.format(rows=messages)))
    for slot, heap in enumerate(heaps):
        text = _SQLITE_DELIVERIES.replace("{numbers}", _SQLITE_NUMBERS.format(rows=heap.rows))
        for name, value in vars(heap).items():
            text = text.replace("{" + name + "}", str(value))
        sql(store, text.replace("{slot:03x}", f"{slot:03x}"))


def pile_flow(store: PostgresStore, keys: int, each: int) -> None:
    """Fills the tables with keyed deliveries; dead letters have a place before all others.

    Nearly all deliveries of `hot` are of one key; a few are of 99 other keys and due later. `busy` has one key.
    """
    heaps = (
        ("limited", "pending", 1, keys * each, 0, keys),
        ("ordered", "pending", 1, keys * each, keys, keys),
        ("ordered", "failed", 1, keys, 0, keys),
        # In flight, so that the planner knows that the index by queue does not find them by key.
        ("limited", "in_flight", keys - keys // 10, keys - 1, 0, keys),
        ("ordered", "in_flight", keys - keys // 10, keys - 1, keys, keys),
        ("hot", "pending", 1, 2 * keys, 0, 1),
        ("hot", "pending", 2 * keys + 1, 2 * keys + keys // 50, 0, 100),
        ("busy", "pending", 1, keys // 2, 0, 1),
    )
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        connection.execute(_filled(store, _FLOW_MESSAGE))
        for slot, (consumer, status, first, last, place, own) in enumerate(heaps):
            values = {"consumer": consumer, "status": status, "first": first, "last": last, "place": place}
            values |= {"keys": own, "slot": f"{8 + slot:x}"}
            connection.execute(_filled(store, _FLOW_DELIVERIES), values)
        connection.execute("vacuum (analyze)")


def _filled(store: PostgresStore, text: str) -> bytes:
    return text.replace("{hf}", store.dialect.prefix).encode()
