-- fragment: slots
unnest(:lows::uuid[], :highs::uuid[]) with ordinality l (low, high, n)

-- name: accepted_samples
-- For each time slot: the position of its first message, the number of deliveries of its first messages, the number of
-- those that are not done, and whether the slot has no more messages. Ids are ordered by time, so a slot is a range.
select l.n, f.position, s.figures, c.id is null, (select m.position from {hf}message m order by m.id desc limit 1)
from {slots}
left join lateral (
  select m.position from {hf}message m where m.id >= l.low order by m.id limit 1) f on true
left join lateral (
  select m.id from {hf}message m where m.id >= l.low and m.id < l.high order by m.id offset {limit} limit 1) c on true
cross join lateral (
  select concat_ws(',', count(*), count(*) filter (where d.status in ('pending', 'in_flight'))) as figures
  from {hf}delivery d where d.id >= l.low and d.id < coalesce(c.id, l.high)) s
order by l.n

-- name: position_gaps
-- The span of positions of the first messages of each slot; no row for a slot with fewer messages.
select l.n - 1, p.position - f.position
from {slots}
cross join lateral (
  select m.position from {hf}message m where m.id >= l.low order by m.id limit 1) f
cross join lateral (
  select m.id from {hf}message m where m.id >= l.low and m.id < l.high order by m.id offset {limit} limit 1) c
cross join lateral (select m.position from {hf}message m where m.id = c.id) p
order by l.n

-- name: accepted_counts
-- The deliveries created in each time slot (counted only on request) and how many failed up to a bound, from indexes only.
select l.n,
  case when :exact::boolean then (select count(*) from {hf}delivery d where d.id >= l.low and d.id < l.high) end,
  (select count(*) from (
    select from {hf}delivery d where d.status = 'failed' and d.id >= l.low and d.id < l.high limit :bound::bigint) c)
from {slots}
order by l.n

-- name: died
-- The number of dead letters per time slot, from an index only: one range for each consumer, queue and slot, counted up
-- to a bound.
with recursive lane as (
  (select d.consumer, d.queue, 1 as n from {hf}delivery d
   where d.status = 'failed' order by d.consumer, d.queue limit 1)
  union all
  select n.consumer, n.queue, l.n + 1 from lane l cross join lateral (
    select d.consumer, d.queue from {hf}delivery d
    where d.status = 'failed' and (d.consumer, d.queue) > (l.consumer, l.queue)
    order by d.consumer, d.queue limit 1) n
  where l.n < {limit})
select t.low, sum(s.died)
from lane l
cross join unnest(:starts::timestamptz[]) t (low)
cross join lateral (
  select count(*) as died from (
    select from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null and d.consumer = l.consumer and d.queue = l.queue
      and d.completed_at >= t.low and d.completed_at < t.low + :width::interval
    limit :bound::bigint) c) s
group by t.low

-- name: retrying
-- The deliveries of a queue and consumer that wait for a retry, by error. The bounded scan starts with the latest due
-- times: a retry is due in the future, a backlog in the past.
select s.error_type, count(*), min(s.first_failed_at), max(s.id::text), max(s.last_error)
from (select d.error_type, d.first_failed_at, d.id, d.last_error from {hf}delivery d
      where d.status = 'pending' and not d.suspect and d.queue = :queue::text and d.consumer = :consumer::text
      order by d.generation desc, d.priority desc, d.run_at desc, d.id desc limit {limit}) s
where s.error_type is not null
group by s.error_type
