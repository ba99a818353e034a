-- fragment: keyed_waiting
d.status = 'pending' and not d.suspect and d.flow_key is not null and d.flow_seq is null
-- fragment: keyed_ordered
d.status = 'pending' and d.flow_seq is not null
-- fragment: keyed_running
d.status = 'in_flight' and d.flow_key is not null
-- fragment: keyed_dead
d.status = 'failed' and d.discarded_at is null and d.flow_seq is not null

-- name: keyed_lanes
-- The lanes of a consumer whose pending deliveries have a key and no order, by loose index scans over queues and lanes.
with recursive queues as (
  (select d.queue from {hf}delivery d where {keyed_waiting} order by d.queue limit 1)
  union all
  select n.queue from queues q cross join lateral (
    select d.queue from {hf}delivery d where {keyed_waiting} and d.queue > q.queue order by d.queue limit 1) n),
own as (
  select f.queue, f.generation, f.priority from queues q cross join lateral (
    select d.queue, d.generation, d.priority from {hf}delivery d
    where {keyed_waiting} and d.queue = q.queue and d.consumer = :consumer::text
    order by d.queue, d.consumer, d.generation, d.priority limit 1) f
  union all
  select n.queue, n.generation, n.priority from own l cross join lateral (
    select d.queue, d.generation, d.priority from {hf}delivery d
    where {keyed_waiting} and d.queue = l.queue and d.consumer = :consumer::text
      and (d.generation, d.priority) > (l.generation, l.priority)
    order by d.queue, d.consumer, d.generation, d.priority limit 1) n)
select o.queue, o.generation, o.priority from own o limit {limit}

-- name: lane_keys
-- The keys of each of these lanes that sort at or after a bound, by a loose index scan.
select distinct w.flow_key
from unnest(:queue::text[], :generation::bigint[], :priority::smallint[]) l (queue, generation, priority)
cross join lateral (
  with recursive walk as (
    (select d.flow_key, 1 as n from {hf}delivery d
     where {keyed_waiting} and d.queue = l.queue and d.consumer = :consumer::text and d.generation = l.generation
       and d.priority = l.priority and d.flow_key >= :low::text
     order by d.queue, d.consumer, d.generation, d.priority, d.flow_key limit 1)
    union all
    select x.flow_key, walk.n + 1 from walk cross join lateral (
      select d.flow_key from {hf}delivery d
      where {keyed_waiting} and d.queue = l.queue and d.consumer = :consumer::text and d.generation = l.generation
        and d.priority = l.priority and d.flow_key > walk.flow_key
      order by d.queue, d.consumer, d.generation, d.priority, d.flow_key limit 1) x
    where walk.n < :bound::bigint)
  select walk.flow_key from walk) w

-- name: walk_keys
-- The keys of a consumer's ordered, running or dead deliveries that sort at or after a bound, by a loose index scan.
with recursive walk as (
  (select d.flow_key, 1 as n from {hf}delivery d
   where {keyed} and d.consumer = :consumer::text and d.flow_key >= :low::text
   order by d.consumer, d.flow_key limit 1)
  union all
  select x.flow_key, walk.n + 1 from walk cross join lateral (
    select d.flow_key from {hf}delivery d
    where {keyed} and d.consumer = :consumer::text and d.flow_key > walk.flow_key
    order by d.consumer, d.flow_key limit 1) x
  where walk.n < {limit})
select walk.flow_key from walk

-- name: paused_keys
-- The paused keys of a consumer that sort at or after a bound.
select p.flow_key from {hf}flow_pause p
where p.consumer = :consumer::text and p.flow_key >= :low::text
order by p.consumer, p.flow_key limit {limit}

-- name: rated_keys
-- The keys of a consumer with stored claims of a rate that sort at or after a bound, by a loose index scan.
with recursive walk as (
  (select s.flow_key, 1 as n from {hf}flow_start s
   where s.consumer = :consumer::text and s.flow_key >= :low::text order by s.consumer, s.flow_key limit 1)
  union all
  select x.flow_key, walk.n + 1 from walk cross join lateral (
    select s.flow_key from {hf}flow_start s
    where s.consumer = :consumer::text and s.flow_key > walk.flow_key order by s.consumer, s.flow_key limit 1) x
  where walk.n < {limit})
select walk.flow_key from walk

-- fragment: key_lanes
unnest(:queues::text[], :generations::bigint[], :priorities::smallint[]) l (queue, generation, priority)
-- fragment: key_in_lane
{keyed_waiting} and d.queue = l.queue and d.consumer = :consumer::text and d.generation = l.generation
and d.priority = l.priority

-- name: key_counts
-- The deliveries of each key up to a bound, its pause, its claims within the window of the rate, the first delivery of its
-- order and its first dead letter.
select k.n, r.running, o.waiting + u.waiting as waiting, o.due + u.due as due, coalesce(o.oldest_at, u.oldest_at) as oldest_at,
       p.paused_at, s.used, s.first_bucket, h.run_at as head_at, h.flow_seq as head_seq,
       x.id as dead_id, x.completed_at as dead_at, x.flow_seq as dead_seq
from unnest(:n::bigint[], :flow_key::text[]) k (n, flow_key)
cross join lateral (
  select count(*) as running from (
    select from {hf}delivery d where {keyed_running} and d.consumer = :consumer::text and d.flow_key = k.flow_key
    order by d.consumer, d.flow_key limit :bound::bigint) f) r
cross join lateral (
  select count(*) as waiting, count(*) filter (where f.run_at <= now()) as due, min(f.run_at) as oldest_at from (
    select d.run_at from {hf}delivery d
    where {keyed_ordered} and d.consumer = :consumer::text and d.flow_key = k.flow_key
    order by d.consumer, d.flow_key, d.flow_seq limit :bound::bigint) f) o
cross join lateral (
  select count(f.run_at) as waiting, count(*) filter (where f.run_at <= now()) as due, min(f.run_at) as oldest_at
  from {key_lanes}
  cross join lateral (
    select d.run_at from {hf}delivery d where {key_in_lane} and d.flow_key = k.flow_key
    order by d.queue, d.consumer, d.generation, d.priority, d.flow_key, d.run_at limit :bound::bigint) f) u
cross join lateral (
  select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
  where b.consumer = :consumer::text and b.flow_key = k.flow_key and b.bucket > now() - :span::interval) s
left join {hf}flow_pause p on p.consumer = :consumer::text and p.flow_key = k.flow_key
left join lateral (
  select d.run_at, d.flow_seq from {hf}delivery d
  where {keyed_ordered} and d.consumer = :consumer::text and d.flow_key = k.flow_key
  order by d.consumer, d.flow_key, d.flow_seq limit 1) h on true
left join lateral (
  select d.id, d.completed_at, d.flow_seq from {hf}delivery d
  where {keyed_dead} and d.consumer = :consumer::text and d.flow_key = k.flow_key
  order by d.consumer, d.flow_key, d.flow_seq limit 1) x on true

-- name: flow_totals
-- The running deliveries of a consumer and of its queue, both up to a bound, and their claims within the windows of rates.
select
  (select count(*) from (
     select from {hf}delivery d where {keyed_running} and d.consumer = :consumer::text
     order by d.consumer limit :bound::bigint) f) as running,
  (select count(*) from (
     select from {hf}delivery d where {keyed_running} and d.queue = :queue::text
     order by d.queue limit :bound::bigint) f) as queue_running,
  s.used, s.first_bucket, q.used as queue_used, q.first_bucket as queue_first_bucket,
  (select count(*) from (
     select from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue = :queue::text and d.consumer = :consumer::text
     order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint) f) as pending,
  now() as now
from (select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
      where b.consumer = :consumer::text and b.flow_key = '' and b.bucket > now() - :span::interval) s
cross join (
  select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
  where b.consumer = 'queue:' || :queue::text and b.flow_key = '' and b.bucket > now() - :queue_span::interval) q

-- name: delivery_key
-- The key of a delivery and its position in the order of the key; null without one.
select d.flow_key, d.flow_seq from {hf}delivery d where d.id = :id::uuid

-- name: flow_queues
-- The queues with flow settings: the declared ones and the values that an operator set.
select q.name, q.flow, q.flow_override from {hf}queue q where q.flow is not null
