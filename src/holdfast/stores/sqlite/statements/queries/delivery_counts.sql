-- name: load_heads
-- The states of each queue and consumer, with the oldest delivery, by loose index scans: cost grows with lanes,
-- not rows. In-flight deliveries are few and are counted here. Separate probes replace one comparison of rows, for
-- which SQLite would use only the first column.
with recursive waiting(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'pending' and not d.suspect
          order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue = l.queue and d.consumer = l.consumer
       and d.generation = l.generation and d.priority > l.priority
     order by d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue = l.queue and d.consumer = l.consumer
       and d.generation > l.generation
     order by d.generation, d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue = l.queue and d.consumer > l.consumer
     order by d.consumer, d.generation, d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and not d.suspect and d.queue > l.queue
     order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1))
  from waiting join {hf}delivery l on l.rowid = waiting.row),
suspected(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'pending' and d.suspect
          order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and d.suspect and d.queue = l.queue and d.consumer = l.consumer
       and d.generation = l.generation and d.priority > l.priority
     order by d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and d.suspect and d.queue = l.queue and d.consumer = l.consumer
       and d.generation > l.generation
     order by d.generation, d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and d.suspect and d.queue = l.queue and d.consumer > l.consumer
     order by d.consumer, d.generation, d.priority, d.run_at limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and d.suspect and d.queue > l.queue
     order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1))
  from suspected join {hf}delivery l on l.rowid = suspected.row),
ended(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'failed' order by d.consumer, d.queue limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.consumer = l.consumer and d.queue > l.queue order by d.queue limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.consumer > l.consumer order by d.consumer, d.queue limit 1))
  from ended join {hf}delivery l on l.rowid = ended.row),
failing as (
  select l.queue, l.consumer,
    (select d.completed_at from {hf}delivery d
     where d.status = 'failed' and d.consumer = l.consumer and d.queue = l.queue and d.discarded_at is null
     order by d.completed_at limit 1) as failed_at,
    (select d.discarded_at from {hf}delivery d
     where d.status = 'failed' and d.consumer = l.consumer and d.queue = l.queue and d.discarded_at is not null
     order by d.discarded_at limit 1) as discarded_at
  from ended join {hf}delivery l on l.rowid = ended.row)
select l.queue, l.consumer, 'pending', null, min(l.run_at), {now}, null, null, null as since
from waiting join {hf}delivery l on l.rowid = waiting.row group by l.queue, l.consumer
union all
select l.queue, l.consumer, 'suspect', null, min(l.run_at), {now}, null, null, null
from suspected join {hf}delivery l on l.rowid = suspected.row group by l.queue, l.consumer
union all
select r.queue, r.consumer, 'in_flight', count(*), min(r.claimed_at), {now}, null, null, null
from (select d.queue, d.consumer, d.claimed_at from {hf}delivery d where d.status = 'in_flight' limit :limit) r
group by r.queue, r.consumer
union all
select f.queue, f.consumer, 'failed', null, f.failed_at, {now}, null, null, null from failing f where f.failed_at is not null
union all
select f.queue, f.consumer, 'discarded', null, f.discarded_at, {now}, null, null, null from failing f where f.discarded_at is not null

-- name: load_sizes
-- The number of deliveries of each queue, consumer and state, counted up to a bound.
-- each: lanes
select :n, case :state
  when 'pending' then (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = :queue and d.consumer = :consumer limit :bound))
  when 'suspect' then (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'pending' and d.suspect and d.queue = :queue and d.consumer = :consumer limit :bound))
  when 'failed' then (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'failed' and d.consumer = :consumer and d.queue = :queue and d.discarded_at is null limit :bound))
  else (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'failed' and d.consumer = :consumer and d.queue = :queue and d.discarded_at is not null
    limit :bound))
  end

-- fragment: any_consumer
true

-- fragment: one_consumer
d.consumer = :consumer

-- fragment: suspect_size
(select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'pending' and d.suspect and d.queue = :queue and {consumer_choice} limit :bound))

-- name: declared_lanes
-- The lanes of each consumer as it is declared, with every priority, and the current time: a floor for those in which
-- nothing is pending.
select c.queue, c.name, c.generation, p.priority, {now} from {hf}consumer c cross join (select 0 as priority union all select 1 union all select 2 union all select 3) p

-- name: pending_size
-- The number of pending deliveries of a queue, counted up to a bound.
select (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = :queue and {consumer_choice} limit :bound))
  + {suspect_size}

-- name: pending_size_above
-- As `pending_size`, with the floors of all lanes: SQLite removes the index entries of claimed rows at once.
{lane_above}
select l.queue, l.consumer, l.generation, l.priority, min(l.run_at, {now}),
  case when l.queue = :queue and (:consumer is null or l.consumer = :consumer)
  then (select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'pending' and not d.suspect and d.queue = l.queue and d.consumer = l.consumer
      and d.generation = l.generation and d.priority = l.priority limit :bound))
  else 0 end
from head join {hf}delivery l on l.rowid = head.row
union all
select null, null, null, null, null, {suspect_size}

-- name: failure_kinds
-- The fingerprints and consumers of dead letters, by a loose index scan that ends at a bound. A null fingerprint
-- comes first.
with recursive kind(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'failed' and d.discarded_at is null
          order by d.fingerprint, d.consumer limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and d.fingerprint is l.fingerprint and d.consumer > l.consumer
     order by d.consumer limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.discarded_at is null and d.fingerprint > coalesce(l.fingerprint, '')
     order by d.fingerprint, d.consumer limit 1))
  from kind join {hf}delivery l on l.rowid = kind.row
  limit :limit)
select l.fingerprint, l.consumer from kind join {hf}delivery l on l.rowid = kind.row

-- name: recent_failure_kinds
-- The fingerprints and consumers of the newest failures.
select distinct r.fingerprint, r.consumer
from (select d.fingerprint, d.consumer, d.discarded_at from {hf}delivery d
      where d.status = 'failed' order by d.id desc limit :limit) r
where r.discarded_at is null

-- name: failure_sizes
-- The number of dead letters in each group, counted up to a bound from the oldest, and the first failure.
-- each: kinds
select :n, count(*), min(c.first_failed_at)
from (select d.first_failed_at from {hf}delivery d
      where d.status = 'failed' and d.discarded_at is null and d.fingerprint is :fingerprint and d.consumer = :consumer
      order by d.completed_at limit :bound) c

-- name: failures_beyond
-- Whether there are more failed deliveries than a limit.
select 1 from {hf}delivery d where d.status = 'failed' order by d.id limit 1 offset :limit

-- name: failure_minutes
-- The number of dead letters of each group in each time range, and the first failure.
-- each: kinds
with found as materialized (
  select e.low, (
    select count(*) || ',' || coalesce(min(d.first_failed_at), '') from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and d.fingerprint is :fingerprint and d.consumer = :consumer
      and d.completed_at >= e.low and d.completed_at < e.high) as figures
  from ({slots}) e)
select :n, f.low, cast(f.figures as integer), cast(nullif(substr(f.figures, instr(f.figures, ',') + 1), '') as integer)
from found f where f.figures <> '0,'

-- name: failure_examples
-- The newest dead letter of each group; for equal times only the first few are compared.
-- each: kinds
select :n, c.id, c.error_type, c.last_error, c.completed_at
from (select d.id, d.error_type, d.last_error, d.completed_at from {hf}delivery d
      where d.status = 'failed' and d.discarded_at is null and d.fingerprint is :fingerprint and d.consumer = :consumer
      order by d.completed_at desc limit 10) c
order by c.completed_at desc, c.id desc limit 1
