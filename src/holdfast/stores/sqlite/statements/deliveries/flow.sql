-- name: flow_claim
-- Claims due deliveries of one lane within the limits, rates, pauses and order of its consumer and queue. The room of each
-- key is found once, at its first candidate. The last row has no delivery: it has the number of candidates left, how
-- many of them have no key, the milliseconds until the next token of a rate, the last key of a walk, the number of its
-- keys, the last of recent candidates, and the time.
-- once
update {hf}delivery
{taken}, flow_key = coalesce(flow_key, '')
where rowid in (
  with recursive {candidates},
  n as materialized (
    select w.row, w.id, w.flow_key, w.run_at, w.flow_seq, w.turn,
           row_number() over (partition by w.flow_key order by {rank}) as nth
    from w where w.flow_key is not null),
  {chosen})
returning id;
-- all: returned
{ledger}
-- all: returned
{queue_ledger}
-- all: returned
with recursive {candidates}
select u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
       u.holds, u.expiries, u.suspect, u.run_at, u.retry, u.flow_key, null, null, null, null, null, null, null, null,
       null, null
from json_each(:rows) j join {hf}delivery u on u.id = j.value
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       (select count(*) from w), (select count(*) from w where {unkeyed}),
       (select min(a.at) from (select null as at {wait} {queue_wait}) a) - {now}, {cursor}, {keys},
       {edge}, {now}, {visited}

-- fragment: flow_chosen
k as materialized (
    select n.row, n.id, n.flow_key, n.run_at, n.turn, n.nth,
           case when n.nth = 1 then min(:size, :size{room}) end as own from n),
  r as materialized (
    select k.row, k.id, k.run_at, k.turn, k.nth, max(k.own) over (partition by k.flow_key) as room from k)
  select r.row from r where r.nth <= r.room order by {turn} limit max(0, min(:size, :size{cap}))

-- fragment: flow_chosen_heads
k as materialized (
    select n.row, n.flow_key, n.flow_seq from n where n.nth = 1 order by {turn_heads})
  select n.row from k n where min(:size, :size{room}) > 0 limit max(0, min(:size, :size{cap}))

-- fragment: flow_window
w as materialized (
  select d.rowid as row, d.id, {flow_key} as flow_key, d.run_at, d.flow_seq, 0 as turn
  from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority
    and (d.run_at, d.id) >= (:floor_at, :floor_id) and d.run_at <= {now}
  order by d.run_at, d.id limit {window})

-- fragment: flow_window_keyed
2 * :size + 100
-- fragment: flow_window_whole
:size

-- fragment: flow_walk
opening as materialized (
  select (select d.flow_key from {hf}delivery d {walked} and d.flow_key <= :cursor
          order by d.flow_key limit 1) as key),
walk (after, first, wrapped, step) as (
  select (select d.flow_key from {hf}delivery d {walked} and d.flow_key > :cursor order by d.flow_key limit 1),
         o.key, 0, 1
  from opening o
  union all
  select (select d.flow_key from {hf}delivery d {walked} and d.flow_key > coalesce(p.after, p.first)
            and (d.flow_key <= :cursor or not (p.wrapped or p.after is null))
          order by d.flow_key limit 1),
         case when not (p.wrapped or p.after is null) then o.key end,
         p.wrapped or p.after is null, p.step + 1
  from walk p cross join opening o
  where coalesce(p.after, p.first) is not null and p.step < :visits),
visit as materialized (
  select coalesce(p.after, p.first) as key, p.step from walk p where coalesce(p.after, p.first) is not null),
{walk_rows}

-- fragment: flow_walk_floors
-- SQLite reads every key from its beginning.
{flow_walk}

-- fragment: flow_walked_keys
indexed by {hf}delivery_flow
where d.status = 'pending' and not d.suspect and d.flow_key is not null and d.flow_seq is null
  and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority

-- fragment: flow_walk_rows
w as materialized (
  select x.rowid as row, x.id, x.flow_key, x.run_at, x.flow_seq, p.step as turn
  from visit p cross join {hf}delivery x
  where x.rowid in (
    select d.rowid from {hf}delivery d {walked} and d.flow_key = p.key and d.run_at <= {now}
    order by d.run_at, d.id limit :share))

-- fragment: flow_first_due
d.run_at
-- fragment: flow_first_place
d.flow_seq

-- fragment: flow_walked_heads
indexed by {hf}delivery_order
where d.status = 'pending' and d.flow_seq is not null and d.consumer = :consumer

-- fragment: flow_walk_heads
w as materialized (
  select x.rowid as row, x.id, x.flow_key, x.run_at, x.flow_seq, p.step as turn
  from visit p cross join {hf}delivery x
  where x.rowid = (
    -- As conditions of x, SQLite would build a Bloom filter of all deliveries for each walk.
    select case when d.run_at <= {now} and not d.suspect and d.queue = :queue and d.generation = :generation
                     and d.priority = :priority then d.rowid end
    from {hf}delivery d {walked} and d.flow_key = p.key order by d.flow_seq limit 1))

-- fragment: flow_one_key
''
-- fragment: flow_own_key
d.flow_key
-- fragment: flow_all_keyed
0
-- fragment: flow_without_key
w.flow_key is null
-- fragment: flow_without_place
w.flow_key is null or w.flow_seq is null

-- fragment: rank_due
w.run_at, w.id
-- fragment: rank_order
w.flow_seq
-- fragment: turn_due
r.run_at, r.id
-- fragment: turn_key
r.nth, r.turn
-- fragment: turn_heads_due
n.run_at, n.id
-- fragment: turn_heads_key
n.turn

-- fragment: cursor_none
null
-- fragment: cursor_walk
coalesce((select u.flow_key from json_each(:rows) j join {hf}delivery u on u.id = j.value
          order by u.flow_key <= :cursor desc, u.flow_key desc limit 1),
         (select p.key from visit p order by p.step desc limit 1))

-- fragment: edge_first
null, null
-- fragment: edge_last
(select w.run_at from w order by w.run_at desc, w.id desc limit 1),
(select w.id from w order by w.run_at desc, w.id desc limit 1)

-- fragment: keys_none
null
-- fragment: keys_walk
(select count(*) from visit)

-- fragment: visited_none
null, null
-- fragment: visited_walk
null, null

-- fragment: room_limit
, :most - (
  select count(*) from (
    select 1 from {hf}delivery f indexed by {hf}delivery_running
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer and f.flow_key = n.flow_key
    limit :most))
-- fragment: room_rate
, :rate - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = :consumer and s.flow_key = n.flow_key and s.bucket > {now} - :rate_window - :grain)
-- fragment: room_pause
, case when exists (
    select 1 from {hf}flow_pause p where p.consumer = :consumer and p.flow_key = n.flow_key) then 0 else :size end
-- fragment: room_head
, case
    when exists (
      select 1 from {hf}delivery f indexed by {hf}delivery_running
      where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer
        and f.flow_key = n.flow_key) then 0
    when n.flow_seq > (
      select h.flow_seq from {hf}delivery h indexed by {hf}delivery_order
      where h.status = 'pending' and h.flow_seq is not null and h.consumer = :consumer and h.flow_key = n.flow_key
      order by h.flow_seq limit 1) then 0
    else 1 end
-- fragment: room_dead
, case when n.flow_seq > (
    select x.flow_seq from {hf}delivery x indexed by {hf}delivery_stuck
    where x.status = 'failed' and x.discarded_at is null and x.flow_seq is not null and x.consumer = :consumer
      and x.flow_key = n.flow_key
    order by x.flow_seq limit 1) then 0 else 1 end

-- fragment: cap_limit
, :most - (
  select count(*) from (
    select 1 from {hf}delivery f indexed by {hf}delivery_running
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer
    limit :most))
-- fragment: cap_rate
, :rate - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = :consumer and s.flow_key = '' and s.bucket > {now} - :rate_window - :grain)
-- fragment: cap_queue_limit
, :queue_most - (
  select count(*) from (
    select 1 from {hf}delivery f indexed by {hf}delivery_queue_running
    where f.status = 'in_flight' and f.flow_key is not null and f.queue = :queue
    limit :queue_most))
-- fragment: cap_queue_rate
, :queue_rate - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = 'queue:' || :queue and s.flow_key = '' and s.bucket > {now} - :queue_window - :queue_grain)
-- fragment: cap_adopted
, case when exists (select 1 from w where {unkeyed}) then 0 else :size end

-- fragment: ledger_keys
insert into {hf}flow_start (consumer, flow_key, bucket, n)
select :consumer, u.flow_key, {now} / :grain * :grain, count(*)
from json_each(:rows) j join {hf}delivery u on u.id = j.value where true group by u.flow_key
on conflict (consumer, flow_key, bucket) do update set n = n + excluded.n
-- fragment: ledger_all
insert into {hf}flow_start (consumer, flow_key, bucket, n)
select :consumer, '', {now} / :grain * :grain, count(*) from json_each(:rows) j where true having count(*) > 0
on conflict (consumer, flow_key, bucket) do update set n = n + excluded.n
-- fragment: ledger_queue
insert into {hf}flow_start (consumer, flow_key, bucket, n)
select 'queue:' || :queue, '', {now} / :queue_grain * :queue_grain, count(*)
from json_each(:rows) j where true having count(*) > 0
on conflict (consumer, flow_key, bucket) do update set n = n + excluded.n

-- fragment: wait_keys
union all
select min(s.bucket) + :rate_window + :grain from {hf}flow_start s
where s.consumer = :consumer and s.bucket > {now} - :rate_window - :grain
  and s.flow_key in (select w.flow_key from w)
-- fragment: wait_all
union all
select min(s.bucket) + :rate_window + :grain from {hf}flow_start s
where s.consumer = :consumer and s.flow_key = '' and s.bucket > {now} - :rate_window - :grain
-- fragment: wait_queue
union all
select min(s.bucket) + :queue_window + :queue_grain from {hf}flow_start s
where s.consumer = 'queue:' || :queue and s.flow_key = '' and s.bucket > {now} - :queue_window - :queue_grain

-- name: flow_messages
-- The messages of claimed deliveries, read after the claim.
select m.id, m.type, m.source, m.key, case when length(m.payload) <= 65536 then m.payload else '' end,
       m.headers, m.occurred_at, m.generation
from json_each(:ids) i join {hf}message m on m.id = i.value

-- name: due_lanes
-- The numbers of the given lanes, from 0, that have a due delivery, and fewer in flight than the limit for all keys. One
-- index entry of each is read, and those in flight.
-- all: lanes
select l.key from json_each(:rows) l
where exists (
  select 1 from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = l.value ->> 0 and d.consumer = l.value ->> 1 and d.generation = l.value ->> 2
    and d.priority = l.value ->> 3 and d.run_at <= {now})
  and (l.value ->> 6 is null or l.value ->> 6 > (
    select count(*) from {hf}delivery f indexed by {hf}delivery_running
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = l.value ->> 1))

-- name: flow_floor
-- The lowest tickets in flight; SQLite counts without them.
select 0, 0

-- name: flow_unkeyed
-- Pending deliveries of a lane that have no key yet, no position in the order, or one that is no longer used, with their
-- messages. It reads at most :scanned rows of the lane; if there may be more, the last row has no message: it is the last
-- one that was read.
with s as materialized (
  select d.id, d.run_at, d.message_id, d.flow_key is null or (d.flow_seq is null) = :ordered as unkeyed
  from {hf}delivery d
  where d.status = 'pending' and d.queue = :queue and d.consumer = :consumer
    and d.generation = :generation and d.priority = :priority and {suspicion}
    and (d.run_at, d.id) > (:after_at, :after_id)
  order by d.run_at, d.id limit :scanned),
u as (select s.id, s.run_at, s.message_id from s where s.unkeyed order by s.run_at, s.id limit :limit)
select u.id, u.run_at, m.type, m.payload, m.headers, u.message_id from u join {hf}message m on m.id = u.message_id
union all
select l.id, l.run_at, null, null, null, null
from (select s.id, s.run_at from s order by s.run_at desc, s.id desc limit 1) l
where (select count(*) from s) >= :scanned

-- name: forget_old_starts
-- Removes buckets that no rate needs, also those of consumers and queues that are gone or have no rate any more.
delete from {hf}flow_start
where bucket < {now} - max(86400000, coalesce((
  select max(2000 * max(coalesce(json_extract(f.flow, '$.rate[1]'), 0),
                        coalesce(json_extract(f.flow_override, '$.rate[1]'), 0)))
  from (select flow, flow_override from {hf}consumer union all select flow, flow_override from {hf}queue) f), 0))

-- name: lock_flow
-- Returns after its locks are taken; SQLite has one writer and needs none.
select 1

-- name: forget_starts
-- Removes the buckets of a rate that are older than its window.
delete from {hf}flow_start where consumer = :consumer and bucket < {now} - :older_than
