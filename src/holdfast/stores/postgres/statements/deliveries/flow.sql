-- name: flow_claim
-- Claims due deliveries of one lane within the limits, rates, pauses and order of its consumer and queue. The room of each
-- key is found once, at its first candidate, by subqueries with a limit: instead of `exists` the planner would read all
-- that is in flight. Only the chosen ids are locked: a search that skipped locked rows would take the second delivery of an
-- ordered key before the first. The last row has no delivery: it has the number of candidates
-- left, how many of them have no key, the milliseconds until the next token of a rate, the last key of a walk, the number
-- of its keys, the first candidate (of recent ones the last), the time, and the keys of a walk, each with the `run_at`
-- of its first candidate.
with recursive t as materialized (select clock_timestamp() as now),
{candidates},
n as materialized (
  select w.id, w.flow_key, w.run_at, w.flow_seq, w.turn,
         row_number() over (partition by w.flow_key order by {rank}) as nth
  from w where w.flow_key is not null),
{chosen},
c as materialized (
  select d.id from {hf}delivery d
  where d.id = any (array(select x.id from x)) and d.status = 'pending' for update skip locked),
u as (
  update {hf}delivery d
  {taken}, flow_key = coalesce(d.flow_key, ''), flow_ticket = nextval('{hf}flow_ticket')
  where d.id = any (array(select c.id from c))
  returning d.*){ledger}{queue_ledger}
select u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
       u.holds, u.expiries, u.suspect, u.run_at, u.retry::text, u.flow_key,
       null::bigint, null::bigint, null::double precision, null::text, null::bigint, null::timestamptz, null::uuid,
       null::timestamptz, null::text[], null::timestamptz[]
from u
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       (select count(*) from w) - (select count(*) from c), (select count(*) from w where {unkeyed}),
       least(null::double precision{wait}{queue_wait}) * 1000, {cursor}, {keys},
       {edge}, now(), {visited}

-- fragment: flow_chosen
k as materialized (
  select n.id, n.flow_key, n.run_at, n.turn, n.nth, case when n.nth = 1 then least({limit}{room}) end as own from n),
r as materialized (
  select k.id, k.flow_key, k.run_at, k.turn, k.nth, max(k.own) over (partition by k.flow_key) as room from k),
x as materialized (
  select r.id, r.flow_key, r.turn from r where r.nth <= r.room
  order by {turn} limit greatest(0, least({limit}{cap})))

-- fragment: flow_chosen_heads
k as materialized (
  select n.id, n.flow_key, n.run_at, n.flow_seq, n.turn, n.nth from n where n.nth = 1 order by {turn_heads}),
x as (
  select n.id, n.flow_key, n.turn from k n where least({limit}{room}) > 0
  limit greatest(0, least({limit}{cap})))

-- fragment: flow_window
w as materialized (
  select d.id, {flow_key} as flow_key, d.run_at, d.flow_seq, 0 as turn
  from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = :queue::text and d.consumer = :consumer::text and d.generation = :generation::bigint
    and d.priority = :priority::smallint
    and (d.run_at, d.id) >= (:floor_at::timestamptz, :floor_id::uuid) and d.run_at <= now()
  order by d.run_at, d.id limit {window})

-- fragment: flow_window_keyed
2 * {limit} + 100
-- fragment: flow_window_whole
{limit}

-- fragment: flow_walk
walk (key, first, wrapped, step) as (
  (select * from (
     (select d.flow_key, {first}, false, 1 from {hf}delivery d where {walked} and d.flow_key > :cursor::text
      order by d.flow_key, {first} limit 1)
     union all
     (select d.flow_key, {first}, true, 1 from {hf}delivery d where {walked} and d.flow_key <= :cursor::text
      order by d.flow_key, {first} limit 1)) s
   limit 1)
  union all
  select x.key, x.first, x.wrapped, x.step from walk p cross join lateral (
    select * from (
      (select d.flow_key, {first}, p.wrapped, p.step + 1 from {hf}delivery d where {walked} and d.flow_key > p.key
       order by d.flow_key, {first} limit 1)
      union all
      (select d.flow_key, {first}, true, p.step + 1 from {hf}delivery d
       where not p.wrapped and {walked} and d.flow_key <= :cursor::text
       order by d.flow_key, {first} limit 1)) s
    limit 1) x (key, first, wrapped, step)
  where p.step < :visits::bigint and not (x.wrapped and x.key > :cursor::text)),
{walk_rows}

-- fragment: flow_walk_floors
-- As flow_walk, with the keys that the worker knows, in the order of the walk: between one known key and the next only
-- unknown ones are searched for, and the deliveries of a known key are read from its floor. A known key without a floor
-- ends a range of keys, or begins one that contains it; it is not visited.
steps (key, first, step, next) as (
  select :cursor::text collate "C", 'infinity'::timestamptz, 0, 1
  union all
  select x.key, x.first, x.step, x.next from steps p cross join lateral (
    select * from (
      (select d.flow_key, d.run_at, p.step + 1, p.next from {hf}delivery d
       where {walked} and d.flow_key < (:known::text[])[p.next]
         and (d.flow_key, d.run_at) > (p.key, case when p.first is null then timestamptz '-infinity' else 'infinity' end)
       order by d.flow_key, d.run_at limit 1)
      union all
      (select k.key, k.floor, p.step + (k.floor is not null)::integer, p.next + 1
       from (select (:known::text[])[p.next] as key, (:known_floors::timestamptz[])[p.next] as floor) k)) s
    limit 1) x (key, first, step, next)
  where p.step < :visits::bigint and p.next <= cardinality(:known::text[])),
walk as materialized (select s.key, s.first, s.step from steps s where s.step > 0 and s.first is not null),
{walk_rows},
seen as materialized (
  select array_agg(p.key) as keys, array_agg(f.first) as firsts
  from walk p left join (select w.turn, min(w.run_at) as first from w group by w.turn) f on f.turn = p.step)

-- fragment: flow_walked_keys
d.status = 'pending' and not d.suspect and d.flow_key is not null and d.flow_seq is null
and d.queue = :queue::text and d.consumer = :consumer::text and d.generation = :generation::bigint
and d.priority = :priority::smallint

-- fragment: flow_walk_rows
w as materialized (
  select d.id, d.flow_key, d.run_at, d.flow_seq, p.step as turn
  from walk p
  cross join lateral (
    select d.id, d.flow_key, d.run_at, d.flow_seq from {hf}delivery d
    where {walked}
      and (d.flow_key, d.run_at) >= (p.key, p.first) and (d.flow_key, d.run_at) <= (p.key, now())
    order by d.flow_key, d.run_at, d.id limit :share::bigint) d)

-- fragment: flow_first_due
d.run_at
-- fragment: flow_first_place
d.flow_seq

-- fragment: flow_walked_heads
d.status = 'pending' and d.flow_seq is not null and d.consumer = :consumer::text

-- fragment: flow_walk_heads
w as materialized (
  select d.id, d.flow_key, d.run_at, d.flow_seq, p.step as turn
  from walk p
  cross join lateral (
    select d.id, d.flow_key, d.run_at, d.flow_seq, d.suspect, d.queue, d.generation, d.priority from {hf}delivery d
    where {walked} and d.flow_key = p.key and d.flow_seq >= p.first
    order by d.flow_seq limit 1) d
  where d.run_at <= now() and not d.suspect and d.queue = :queue::text and d.generation = :generation::bigint
    and d.priority = :priority::smallint)

-- fragment: flow_one_key
''
-- fragment: flow_own_key
d.flow_key
-- fragment: flow_all_keyed
false
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
coalesce((select x.flow_key from x order by x.turn desc limit 1),
         (select p.key from walk p order by p.step desc limit 1))

-- fragment: edge_first
(select w.run_at from w order by w.run_at, w.id limit 1), (select w.id from w order by w.run_at, w.id limit 1)
-- fragment: edge_last
(select w.run_at from w order by w.run_at desc, w.id desc limit 1),
(select w.id from w order by w.run_at desc, w.id desc limit 1)

-- fragment: keys_none
null
-- fragment: keys_walk
(select count(*) from walk)

-- fragment: visited_none
null, null
-- fragment: visited_walk
(select s.keys from seen s), (select s.firsts from seen s)

-- fragment: room_limit
, :most::bigint - (
  select count(*) from (
    select from {hf}delivery f
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer::text
      and f.flow_key = n.flow_key and f.flow_ticket >= :low::bigint
    order by f.flow_ticket limit :most::bigint) f)
-- fragment: room_rate
, :rate::bigint - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = :consumer::text and s.flow_key = n.flow_key
    and s.bucket > (select t.now from t) - :rate_window::interval - :grain::interval)
-- fragment: room_pause
, case when exists (
    select from {hf}flow_pause p where p.consumer = :consumer::text and p.flow_key = n.flow_key) then 0 else {limit} end
-- fragment: room_head
, case
    when (
      select f.flow_ticket from {hf}delivery f
      where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer::text
        and f.flow_key = n.flow_key and f.flow_ticket >= :low::bigint
      order by f.flow_ticket limit 1) is not null then 0
    when n.flow_seq > (
      select h.flow_seq from {hf}delivery h
      where h.status = 'pending' and h.flow_seq is not null and h.consumer = :consumer::text
        and h.flow_key = n.flow_key
      order by h.flow_seq limit 1) then 0
    else 1 end
-- fragment: room_dead
, case when n.flow_seq > (
    select x.flow_seq from {hf}delivery x
    where x.status = 'failed' and x.discarded_at is null and x.flow_seq is not null and x.consumer = :consumer::text
      and x.flow_key = n.flow_key
    order by x.flow_seq limit 1) then 0 else 1 end

-- fragment: cap_limit
, :most::bigint - (
  select count(*) from (
    select from {hf}delivery f
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer::text
      and f.flow_ticket >= :low::bigint
    limit :most::bigint) f)
-- fragment: cap_rate
, :rate::bigint - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = :consumer::text and s.flow_key = ''
    and s.bucket > (select t.now from t) - :rate_window::interval - :grain::interval)
-- fragment: cap_queue_limit
, :queue_most::bigint - (
  select count(*) from (
    select from {hf}delivery f
    where f.status = 'in_flight' and f.flow_key is not null and f.queue = :queue::text
      and f.flow_ticket >= :queue_low::bigint
    limit :queue_most::bigint) f)
-- fragment: cap_queue_rate
, :queue_rate::bigint - (
  select coalesce(sum(s.n), 0) from {hf}flow_start s
  where s.consumer = 'queue:' || :queue::text and s.flow_key = ''
    and s.bucket > (select t.now from t) - :queue_window::interval - :queue_grain::interval)
-- fragment: cap_adopted
, case when exists (select from w where {unkeyed}) then 0 else {limit} end

-- fragment: ledger_keys
, started as (
  insert into {hf}flow_start as s (consumer, flow_key, bucket, n)
  select :consumer::text, u.flow_key, date_bin(:grain::interval, (select t.now from t), '2000-01-01'), count(*)
  from u group by u.flow_key
  on conflict (consumer, flow_key, bucket) do update set n = s.n + excluded.n)
-- fragment: ledger_all
, started as (
  insert into {hf}flow_start as s (consumer, flow_key, bucket, n)
  select :consumer::text, '', date_bin(:grain::interval, (select t.now from t), '2000-01-01'), count(*)
  from u having count(*) > 0
  on conflict (consumer, flow_key, bucket) do update set n = s.n + excluded.n)
-- fragment: ledger_queue
, started_queue as (
  insert into {hf}flow_start as s (consumer, flow_key, bucket, n)
  select 'queue:' || :queue::text, '', date_bin(:queue_grain::interval, (select t.now from t), '2000-01-01'), count(*)
  from u having count(*) > 0
  on conflict (consumer, flow_key, bucket) do update set n = s.n + excluded.n)

-- fragment: wait_keys
, (select extract(epoch from min(s.bucket) + :rate_window::interval + :grain::interval - (select t.now from t))
   from k cross join lateral (
     select s.bucket from {hf}flow_start s
     where s.consumer = :consumer::text and s.flow_key = k.flow_key
       and s.bucket > (select t.now from t) - :rate_window::interval - :grain::interval
     order by s.bucket limit 1) s
   where k.own <= 0)
-- fragment: wait_all
, (select extract(epoch from min(s.bucket) + :rate_window::interval + :grain::interval - (select t.now from t))
   from {hf}flow_start s
   where s.consumer = :consumer::text and s.flow_key = ''
     and s.bucket > (select t.now from t) - :rate_window::interval - :grain::interval)
-- fragment: wait_queue
, (select extract(epoch from min(s.bucket) + :queue_window::interval + :queue_grain::interval - (select t.now from t))
   from {hf}flow_start s
   where s.consumer = 'queue:' || :queue::text and s.flow_key = ''
     and s.bucket > (select t.now from t) - :queue_window::interval - :queue_grain::interval)

-- name: flow_messages
-- The messages of claimed deliveries, read after the locks of the claim have ended.
select m.id, m.type, m.source, m.key,
       case when octet_length(m.text) <= 65536 then m.text else '' end,
       m.headers::text, m.occurred_at, m.generation
from unnest(:ids::uuid[]) i (id)
cross join lateral (
  select m.*, case when pg_column_size(m.payload) <= 65536 then m.payload::text end as text
  from {hf}message m where m.id = i.id offset 0) m

-- name: due_lanes
-- The numbers of the given lanes, from 0, that have a due delivery, and fewer in flight than the limit for all keys. One
-- index entry of each is read, and those in flight up to the limit; `limit` in a lateral query keeps the planner from
-- joining the whole table.
select l.number - 1
from unnest(:queue::text[], :consumer::text[], :generation::bigint[], :priority::smallint[],
            :floor_at::timestamptz[], :floor_id::uuid[], :most::bigint[], :low::bigint[])
       with ordinality l (queue, consumer, generation, priority, floor_at, floor_id, most, low, number)
cross join lateral (
  select from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
    and (d.run_at, d.id) >= (l.floor_at, l.floor_id) and d.run_at <= now()
  order by d.run_at, d.id limit 1) d
where l.most is null or l.most > (
  select count(*) from (
    select from {hf}delivery f
    where f.status = 'in_flight' and f.flow_key is not null and f.consumer = l.consumer and f.flow_ticket >= l.low
    limit l.most) f)

-- name: flow_floor
-- The lowest tickets in flight, of the consumer and of the queue. Under their locks, every later claim gets a higher one.
select coalesce((select min(f.flow_ticket) from {hf}delivery f
                 where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer::text), q.last_value),
       coalesce((select min(f.flow_ticket) from {hf}delivery f
                 where f.status = 'in_flight' and f.flow_key is not null and f.queue = :queue::text), q.last_value)
from {hf}flow_ticket q

-- name: flow_unkeyed
-- Pending deliveries of a lane that have no key yet, no position in the order, or one that is no longer used, with their
-- messages. It reads at most :scanned rows of the lane; if there may be more, the last row has no message: it is the last
-- one that was read.
with s as materialized (
  select d.id, d.run_at, d.message_id, d.flow_key is null or (d.flow_seq is null) = :ordered::boolean as unkeyed
  from {hf}delivery d
  where d.status = 'pending' and d.queue = :queue::text and d.consumer = :consumer::text
    and d.generation = :generation::bigint and d.priority = :priority::smallint and {suspicion}
    and (d.run_at, d.id) > (:after_at::timestamptz, :after_id::uuid)
  order by d.run_at, d.id limit :scanned::bigint),
u as (select s.id, s.run_at, s.message_id from s where s.unkeyed order by s.run_at, s.id limit {limit})
select u.id, u.run_at, m.type, m.payload::text, m.headers::text, u.message_id
from u cross join lateral (select m.* from {hf}message m where m.id = u.message_id offset 0) m
union all
select l.id, l.run_at, null, null, null, null
from (select s.id, s.run_at from s order by s.run_at desc, s.id desc limit 1) l
where (select count(*) from s) >= :scanned::bigint

-- name: forget_old_starts
-- Removes buckets that no rate needs, also those of consumers and queues that are gone or have no rate any more.
delete from {hf}flow_start s
where s.bucket < now() - greatest(interval '1 day', 2 * interval '1 s' * (
  select max(greatest((f.flow::jsonb -> 'rate' ->> 1)::double precision,
                      (f.flow_override::jsonb -> 'rate' ->> 1)::double precision))
  from (select c.flow, c.flow_override from {hf}consumer c union all select q.flow, q.flow_override from {hf}queue q) f))

-- name: lock_flow
-- Returns after its locks are taken.
select 1

-- name: forget_starts
-- Removes the buckets of a rate that are older than its window.
delete from {hf}flow_start s
where s.consumer = :consumer::text and s.bucket < now() - :older_than::interval
