-- name: load_heads
-- The states of each queue and consumer, with the oldest delivery, by loose index scans: cost grows with lanes,
-- not rows. In-flight deliveries are few and are counted here. Each order matches an index, so that no plan sorts. The
-- last columns are the place of the oldest delivery of a lane: a count from there does not read the dead rows before it
-- again, which stay while a transaction holds an old snapshot.
with recursive waiting as (
  (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
   where d.status = 'pending' and not d.suspect
   order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
  union all
  select n.* from waiting l cross join lateral (
    select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
    where d.status = 'pending' and not d.suspect
      and (d.queue, d.consumer, d.generation, d.priority) > (l.queue, l.consumer, l.generation, l.priority)
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1) n),
suspected as (
  (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
   where d.status = 'pending' and d.suspect
   order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
  union all
  select n.* from suspected l cross join lateral (
    select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
    where d.status = 'pending' and d.suspect
      and (d.queue, d.consumer, d.generation, d.priority) > (l.queue, l.consumer, l.generation, l.priority)
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1) n),
ended as (
  (select d.consumer, d.queue from {hf}delivery d where d.status = 'failed' order by d.consumer, d.queue limit 1)
  union all
  select n.* from ended l cross join lateral (
    select d.consumer, d.queue from {hf}delivery d
    where d.status = 'failed' and (d.consumer, d.queue) > (l.consumer, l.queue)
    order by d.consumer, d.queue limit 1) n)
select w.queue, w.consumer, 'pending', null::bigint, w.run_at as oldest_at, now(), w.generation, w.priority, w.run_at as since from waiting w
union all
select s.queue, s.consumer, 'suspect', null, s.run_at, now(), s.generation, s.priority, s.run_at from suspected s
union all
select r.queue, r.consumer, 'in_flight', count(*), min(r.claimed_at), now(), null, null, null
from (select d.queue, d.consumer, d.claimed_at from {hf}delivery d where d.status = 'in_flight' limit {limit}) r
group by r.queue, r.consumer
union all
select e.queue, e.consumer, 'failed', null, h.completed_at, now(), null, null, null
from ended e cross join lateral (
  select d.completed_at from {hf}delivery d
  where d.status = 'failed' and d.discarded_at is null and d.consumer = e.consumer and d.queue = e.queue
  order by d.consumer, d.queue, d.discarded_at, d.completed_at limit 1) h
union all
select e.queue, e.consumer, 'discarded', null, h.discarded_at, now(), null, null, null
from ended e cross join lateral (
  select d.discarded_at from {hf}delivery d
  where d.status = 'failed' and d.discarded_at is not null and d.consumer = e.consumer and d.queue = e.queue
  order by d.consumer, d.queue, d.discarded_at limit 1) h

-- name: load_sizes
-- The number of deliveries of each queue, consumer and state, counted up to a bound.
select l.n, case l.state
  when 'pending' then (select count(*) from (
    select from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = l.queue and d.consumer = l.consumer
      and (d.generation, d.priority, d.run_at) >= (l.generation, l.priority, l.since)
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint) c)
  when 'suspect' then (select count(*) from (
    select from {hf}delivery d
    where d.status = 'pending' and d.suspect and d.queue = l.queue and d.consumer = l.consumer
      and (d.generation, d.priority, d.run_at) >= (l.generation, l.priority, l.since)
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint) c)
  when 'failed' then (select count(*) from (
    select from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and d.consumer = l.consumer and d.queue = l.queue
    order by d.consumer, d.queue, d.discarded_at, d.completed_at limit :bound::bigint) c)
  else (select count(*) from (
    select from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is not null and d.consumer = l.consumer and d.queue = l.queue
    order by d.consumer, d.queue, d.discarded_at, d.completed_at limit :bound::bigint) c)
  end
from unnest(:n::bigint[], :state::text[], :queue::text[], :consumer::text[], :generation::bigint[], :priority::smallint[],
            :since::timestamptz[]) l (n, state, queue, consumer, generation, priority, since)

-- fragment: any_consumer
true

-- fragment: one_consumer
d.consumer = :consumer::text

-- fragment: suspect_size
(select count(*) from (
    select from {hf}delivery d
    where d.status = 'pending' and d.suspect and d.queue = :queue::text and {consumer_choice}
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint) s)

-- name: declared_lanes
-- The lanes of each consumer as it is declared, with every priority, and the current time: a floor for those in which
-- nothing is pending.
select c.queue, c.name, c.generation, p.priority, now() from {hf}consumer c cross join (values (0::smallint), (1), (2), (3)) p (priority)

-- name: pending_size
-- The number of pending deliveries of a queue, counted up to a bound. Each order matches an index.
select (select count(*) from (
    select from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = :queue::text and {consumer_choice}
    order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint) c)
  + {suspect_size}

-- name: pending_size_above
-- As `pending_size`, but each known lane is read from its floor, so that the dead rows of an old snapshot are not read again.
-- The newest deliveries of a lane are counted first, because the dead rows are at its head. The rows are the floors of all
-- lanes, for the next time; the last one is for the suspects.
{lane_above}
select h.queue, h.consumer, h.generation, h.priority, h.floor_at,
  case when h.is_live and h.queue = :queue::text and (:consumer::text is null or h.consumer = :consumer::text)
  then (select count(*) from (
    select from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = h.queue and d.consumer = h.consumer
      and d.generation = h.generation and d.priority = h.priority and d.run_at >= h.floor_at
    order by d.run_at desc limit :bound::bigint) c)
  else 0 end
from head h
union all
select null, null, null, null, null, {suspect_size}

-- name: failure_kinds
-- The fingerprints and consumers of dead letters, by a loose index scan that ends at a bound.
with recursive kind as (
  (select d.fingerprint, d.consumer, 1 as n from {hf}delivery d
   where d.status = 'failed' and d.discarded_at is null and d.fingerprint is not null
   order by d.fingerprint, d.consumer limit 1)
  union all
  select x.fingerprint, x.consumer, k.n + 1 from kind k cross join lateral (
    select d.fingerprint, d.consumer from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and (d.fingerprint, d.consumer) > (k.fingerprint, k.consumer)
    order by d.fingerprint, d.consumer limit 1) x
  where k.n < {limit}),
nameless as (
  (select d.fingerprint, d.consumer, 1 as n from {hf}delivery d
   where d.status = 'failed' and d.discarded_at is null and d.fingerprint is null
   order by d.fingerprint, d.consumer limit 1)
  union all
  select x.fingerprint, x.consumer, k.n + 1 from nameless k cross join lateral (
    select d.fingerprint, d.consumer from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and d.fingerprint is null and d.consumer > k.consumer
    order by d.fingerprint, d.consumer limit 1) x
  where k.n < {limit})
select k.fingerprint, k.consumer from kind k
union all
select k.fingerprint, k.consumer from nameless k

-- name: recent_failure_kinds
-- The fingerprints and consumers of the newest failures.
select distinct r.fingerprint, r.consumer
from (select d.fingerprint, d.consumer, d.discarded_at from {hf}delivery d
      where d.status = 'failed' order by d.id desc limit {limit}) r
where r.discarded_at is null

-- name: failure_sizes
-- The number of dead letters in each group, counted up to a bound from the oldest, and the first failure.
select k.n, s.size, s.first_failed_at
from unnest(:n::bigint[], :fingerprint::text[], :consumer::text[]) k (n, fingerprint, consumer)
cross join lateral (
  select count(*) as size, min(c.first_failed_at) as first_failed_at
  from (
    (select d.first_failed_at from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and d.fingerprint = k.fingerprint and d.consumer = k.consumer
     order by d.fingerprint, d.consumer, d.completed_at limit :bound::bigint)
    union all
    (select d.first_failed_at from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and k.fingerprint is null and d.fingerprint is null
       and d.consumer = k.consumer
     order by d.fingerprint, d.consumer, d.completed_at limit :bound::bigint)) c) s

-- name: failures_beyond
-- Whether there are more failed deliveries than a limit.
select 1 from {hf}delivery d where d.status = 'failed' order by d.id offset {limit} limit 1

-- name: failure_minutes
-- The number of dead letters of each group in each time range, and the first failure.
select k.n, t.low, s.size, s.first_failed_at
from unnest(:n::bigint[], :fingerprint::text[], :consumer::text[]) k (n, fingerprint, consumer)
cross join unnest(:lows::timestamptz[], :highs::timestamptz[]) t (low, high)
cross join lateral (
  select count(*) as size, min(c.first_failed_at) as first_failed_at
  from (
    select d.first_failed_at from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and d.fingerprint = k.fingerprint and d.consumer = k.consumer
      and d.completed_at >= t.low and d.completed_at < t.high
    union all
    select d.first_failed_at from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and k.fingerprint is null and d.fingerprint is null
      and d.consumer = k.consumer and d.completed_at >= t.low and d.completed_at < t.high) c) s
where s.size > 0

-- name: failure_examples
-- The newest dead letter of each group; for equal times only the first few are compared.
select k.n, e.id, e.error_type, e.last_error, e.completed_at
from unnest(:n::bigint[], :fingerprint::text[], :consumer::text[]) k (n, fingerprint, consumer)
cross join lateral (
  select c.* from (
    (select d.id, d.error_type, d.last_error, d.completed_at from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and d.fingerprint = k.fingerprint and d.consumer = k.consumer
     order by d.fingerprint desc, d.consumer desc, d.completed_at desc limit 10)
    union all
    (select d.id, d.error_type, d.last_error, d.completed_at from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and k.fingerprint is null and d.fingerprint is null
       and d.consumer = k.consumer
     order by d.fingerprint desc, d.consumer desc, d.completed_at desc limit 10)) c
  order by c.completed_at desc, c.id desc limit 1) e
