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
with recursive queues(queue) as (
  select (select min(d.queue) from {hf}delivery d where {keyed_waiting})
  union all
  select (select min(d.queue) from {hf}delivery d where {keyed_waiting} and d.queue > queues.queue)
  from queues where queues.queue is not null),
own(row) as (
  select (select d.rowid from {hf}delivery d
          where {keyed_waiting} and d.queue = queues.queue and d.consumer = :consumer
          order by d.generation, d.priority limit 1)
  from queues where queues.queue is not null
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where {keyed_waiting} and d.queue = l.queue and d.consumer = :consumer and d.generation = l.generation
       and d.priority > l.priority
     order by d.priority limit 1),
    (select d.rowid from {hf}delivery d
     where {keyed_waiting} and d.queue = l.queue and d.consumer = :consumer and d.generation > l.generation
     order by d.generation, d.priority limit 1))
  from own join {hf}delivery l on l.rowid = own.row)
select l.queue, l.generation, l.priority from own join {hf}delivery l on l.rowid = own.row limit :limit

-- name: lane_keys
-- The keys of each of these lanes that sort at or after a bound, by a loose index scan.
-- each: lanes
with recursive walk(flow_key, n) as (
  select (select min(d.flow_key) from {hf}delivery d
          where {keyed_waiting} and d.queue = :queue and d.consumer = :consumer and d.generation = :generation
            and d.priority = :priority and d.flow_key >= :low), 1
  union all
  select (select min(d.flow_key) from {hf}delivery d
          where {keyed_waiting} and d.queue = :queue and d.consumer = :consumer and d.generation = :generation
            and d.priority = :priority and d.flow_key > walk.flow_key), walk.n + 1
  from walk where walk.flow_key is not null and walk.n < :bound)
select walk.flow_key from walk where walk.flow_key is not null

-- name: walk_keys
-- The keys of a consumer's ordered, running or dead deliveries that sort at or after a bound, by a loose index scan.
with recursive walk(flow_key, n) as (
  select (select min(d.flow_key) from {hf}delivery d
          where {keyed} and d.consumer = :consumer and d.flow_key >= :low), 1
  union all
  select (select min(d.flow_key) from {hf}delivery d
          where {keyed} and d.consumer = :consumer and d.flow_key > walk.flow_key), walk.n + 1
  from walk where walk.flow_key is not null and walk.n < :limit)
select walk.flow_key from walk where walk.flow_key is not null

-- name: paused_keys
-- The paused keys of a consumer that sort at or after a bound.
select p.flow_key from {hf}flow_pause p
where p.consumer = :consumer and p.flow_key >= :low
order by p.flow_key limit :limit

-- name: rated_keys
-- The keys of a consumer with stored claims of a rate that sort at or after a bound, by a loose index scan.
with recursive walk(flow_key, n) as (
  select (select min(s.flow_key) from {hf}flow_start s where s.consumer = :consumer and s.flow_key >= :low), 1
  union all
  select (select min(s.flow_key) from {hf}flow_start s
          where s.consumer = :consumer and s.flow_key > walk.flow_key), walk.n + 1
  from walk where walk.flow_key is not null and walk.n < :limit)
select walk.flow_key from walk where walk.flow_key is not null

-- fragment: key_lanes
json_each(:queues) q join json_each(:generations) g on g.key = q.key join json_each(:priorities) p on p.key = q.key
-- fragment: key_in_lane
{keyed_waiting} and d.queue = q.value and d.consumer = :consumer and d.generation = g.value and d.priority = p.value

-- name: key_counts
-- The deliveries of each key up to a bound, its pause, its claims within the window of the rate, the first delivery of its
-- order and its first dead letter.
-- each: keys
select :n as n,
  (select count(*) from (
     select 1 from {hf}delivery d where {keyed_running} and d.consumer = :consumer and d.flow_key = :flow_key
     limit :bound)) as running,
  o.waiting + coalesce((select sum((select count(*) from (select 1 from {hf}delivery d where {key_in_lane} and d.flow_key = :flow_key limit :bound)))
                        from {key_lanes}), 0) as waiting,
  o.due + coalesce((select sum((select count(*) from (
                                  select 1 from {hf}delivery d where {key_in_lane} and d.flow_key = :flow_key and d.run_at <= {now} limit :bound)))
                    from {key_lanes}), 0) as due,
  coalesce(o.oldest_at, (select min((select min(d.run_at) from {hf}delivery d where {key_in_lane} and d.flow_key = :flow_key)) from {key_lanes}))
    as oldest_at,
  (select p.paused_at from {hf}flow_pause p where p.consumer = :consumer and p.flow_key = :flow_key) as paused_at,
  s.used, s.first_bucket, h.run_at as head_at, h.flow_seq as head_seq,
  x.id as dead_id, x.completed_at as dead_at, x.flow_seq as dead_seq
from (
  select count(*) as waiting, count(*) filter (where f.run_at <= {now}) as due, min(f.run_at) as oldest_at from (
    select d.run_at from {hf}delivery d where {keyed_ordered} and d.consumer = :consumer and d.flow_key = :flow_key
    order by d.flow_seq limit :bound) f) o
cross join (
  select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
  where b.consumer = :consumer and b.flow_key = :flow_key and b.bucket > {now} - :span) s
left join (
  select d.run_at, d.flow_seq from {hf}delivery d
  where {keyed_ordered} and d.consumer = :consumer and d.flow_key = :flow_key order by d.flow_seq limit 1) h
left join (
  select d.id, d.completed_at, d.flow_seq from {hf}delivery d
  where {keyed_dead} and d.consumer = :consumer and d.flow_key = :flow_key order by d.flow_seq limit 1) x

-- name: flow_totals
-- The running deliveries of a consumer and of its queue, both up to a bound, and their claims within the windows of rates.
select
  (select count(*) from (select 1 from {hf}delivery d where {keyed_running} and d.consumer = :consumer limit :bound))
    as running,
  (select count(*) from (select 1 from {hf}delivery d where {keyed_running} and d.queue = :queue limit :bound))
    as queue_running,
  s.used, s.first_bucket, q.used as queue_used, q.first_bucket as queue_first_bucket,
  (select count(*) from (
     select 1 from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue = :queue and d.consumer = :consumer limit :bound))
    as pending,
  {now} as now
from (select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
      where b.consumer = :consumer and b.flow_key = '' and b.bucket > {now} - :span) s
cross join (
  select coalesce(sum(b.n), 0) as used, min(b.bucket) as first_bucket from {hf}flow_start b
  where b.consumer = 'queue:' || :queue and b.flow_key = '' and b.bucket > {now} - :queue_span) q

-- name: delivery_key
-- The key of a delivery and its position in the order of the key; null without one.
select d.flow_key, d.flow_seq from {hf}delivery d where d.id = :id

-- name: flow_queues
-- The queues with flow settings: the declared ones and the values that an operator set.
select q.name, q.flow, q.flow_override from {hf}queue q where q.flow is not null
