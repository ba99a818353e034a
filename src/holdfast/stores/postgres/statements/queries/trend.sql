-- name: accepted_samples
-- For each slot of time its first message's position, and of its first messages how many deliveries they have and how
-- many of those are not done; `whole` when the slot has no more messages. Ids are in the order of time: a slot is a range.
select l.n, f.position, s.figures, c.id is null, (select m.position from {hf}message m order by m.id desc limit 1)
from unnest(:lows::uuid[], :highs::uuid[]) with ordinality l (low, high, n)
left join lateral (
  select m.position from {hf}message m where m.id >= l.low order by m.id limit 1) f on true
left join lateral (
  select m.id from {hf}message m where m.id >= l.low and m.id < l.high order by m.id offset {limit} limit 1) c on true
cross join lateral (
  select concat_ws(',', count(*), count(*) filter (where d.status in ('pending', 'in_flight'))) as figures
  from {hf}delivery d where d.id >= l.low and d.id < coalesce(c.id, l.high)) s
order by l.n

-- name: position_gaps
-- How far the positions of the first messages of each slot reach; nothing for a slot with fewer messages.
select l.n, p.position - f.position
from unnest(:lows::uuid[], :highs::uuid[]) with ordinality l (low, high, n)
cross join lateral (
  select m.position from {hf}message m where m.id >= l.low order by m.id limit 1) f
cross join lateral (
  select m.id from {hf}message m where m.id >= l.low and m.id < l.high order by m.id offset {limit} limit 1) c
cross join lateral (select m.position from {hf}message m where m.id = c.id) p
order by l.n

-- name: accepted_counts
-- How many deliveries were made in each slot of time (counted only when asked) and how many of them failed, from indexes alone.
select l.n,
  case when :exact::boolean then (select count(*) from {hf}delivery d where d.id >= l.low and d.id < l.high) end,
  (select count(*) from {hf}delivery d where d.status = 'failed' and d.id >= l.low and d.id < l.high)
from unnest(:lows::uuid[], :highs::uuid[]) with ordinality l (low, high, n)
order by l.n

-- name: died
-- How many of the dead letters died in each minute, from an index alone: one range for each consumer, queue and minute.
with recursive lane as (
  (select d.consumer, d.queue from {hf}delivery d where d.status = 'failed' order by d.consumer, d.queue limit 1)
  union all
  select n.* from lane l cross join lateral (
    select d.consumer, d.queue from {hf}delivery d
    where d.status = 'failed' and (d.consumer, d.queue) > (l.consumer, l.queue)
    order by d.consumer, d.queue limit 1) n)
select t.minute, sum(s.died)
from lane l
cross join unnest(:minutes::timestamptz[]) t (minute)
cross join lateral (
  select count(*) as died from {hf}delivery d
  where d.status = 'failed' and d.discarded_at is null and d.consumer = l.consumer and d.queue = l.queue
    and d.completed_at >= t.minute and d.completed_at < t.minute + interval '1 minute') s
group by t.minute

-- name: retrying
-- What of a queue and consumer failed and waits for its next run, by error. Those that are due last are looked at
-- first, and only so many: a wait lies ahead, a backlog behind.
select s.error_type, count(*), min(s.first_failed_at), max(s.id::text), max(s.last_error)
from (select d.error_type, d.first_failed_at, d.id, d.last_error from {hf}delivery d
      where d.status = 'pending' and not d.suspect and d.queue = :queue::text and d.consumer = :consumer::text
      order by d.generation desc, d.priority desc, d.run_at desc, d.id desc limit {limit}) s
where s.error_type is not null
group by s.error_type
