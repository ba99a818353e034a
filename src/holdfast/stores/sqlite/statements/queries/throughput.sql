-- fragment: slots
-- The time slots in order: each ends where the next begins. A join of both lists would parse one for each slot.
select l.key as n, l.value as low, lead(l.value, 1, json_extract(:highs, '$[#-1]')) over (order by l.key) as high
from json_each(:lows) l

-- name: accepted_samples
-- For each time slot: the position of its first message, the number of deliveries of its first messages, the number of
-- those that are not done, and whether the slot has no more messages. Ids are ordered by time, so a slot is a range.
with slot as (
  select e.n, e.low, e.high,
    (select m.id from {hf}message m where m.id >= e.low and m.id < e.high order by m.id limit 1 offset :limit) as cut
  from ({slots}) e)
select s.n,
  (select m.position from {hf}message m where m.id >= s.low order by m.id limit 1),
  (select count(*) || ',' || coalesce(sum(d.status in ('pending', 'in_flight')), 0) from {hf}delivery d
   where d.id >= s.low and d.id < coalesce(s.cut, s.high)),
  s.cut is null, (select m.position from {hf}message m order by m.id desc limit 1)
from slot s order by s.n

-- name: position_gaps
-- The span of positions of the first messages of each slot; no row for a slot with fewer messages.
with slot as (
  select e.n, e.low,
    (select m.id from {hf}message m where m.id >= e.low and m.id < e.high order by m.id limit 1 offset :limit) as cut
  from ({slots}) e)
select s.n, c.position - (select m.position from {hf}message m where m.id >= s.low order by m.id limit 1)
from slot s join {hf}message c on c.id = s.cut order by s.n

-- name: accepted_counts
-- The deliveries created in each time slot (counted only on request) and how many failed up to a bound, from indexes only.
select e.n,
  case when :exact then (select count(*) from {hf}delivery d where d.id >= e.low and d.id < e.high) end,
  (select count(*) from (
    select 1 from {hf}delivery d where d.status = 'failed' and d.id >= e.low and d.id < e.high limit :bound))
from ({slots}) e
order by e.n

-- name: died
-- The number of dead letters per time slot, from an index only: one range for each consumer, queue and slot, counted up
-- to a bound.
with recursive lane(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'failed' order by d.consumer, d.queue limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.consumer = l.consumer and d.queue > l.queue order by d.queue limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'failed' and d.consumer > l.consumer order by d.consumer, d.queue limit 1))
  from lane join {hf}delivery l on l.rowid = lane.row
  limit :limit)
select m.value, sum((
  select count(*) from (
    select 1 from {hf}delivery d
    where d.status = 'failed' and d.consumer = l.consumer and d.queue = l.queue and d.discarded_at is null
      and d.completed_at >= m.value and d.completed_at < m.value + :width
    limit :bound)))
from lane join {hf}delivery l on l.rowid = lane.row cross join json_each(:starts) m
group by m.value

-- name: retrying
-- The deliveries of a queue and consumer that wait for a retry, by error. The bounded scan starts with the latest due
-- times: a retry is due in the future, a backlog in the past.
select s.error_type, count(*), min(s.first_failed_at), max(s.id), max(s.last_error)
from (select d.error_type, d.first_failed_at, d.id, d.last_error from {hf}delivery d
      where d.status = 'pending' and not d.suspect and d.queue = :queue and d.consumer = :consumer
      order by d.generation desc, d.priority desc, d.run_at desc, d.id desc limit :limit) s
where s.error_type is not null
group by s.error_type
