-- name: accepted
-- For each stretch of time a bounded sample of what was made in it: how many, of how many messages, done, failed; and
-- the positions of its first message and of the first one after it. Ids are in the order of time, so each stretch is one range of the index.
select l.n,
  (select m.position from {hf}message m where m.id >= l.low order by m.id limit 1),
  coalesce((select m.position from {hf}message m where m.id >= l.high order by m.id limit 1),
           (select m.position + 1 from {hf}message m order by m.id desc limit 1)),
  (select concat_ws(',', count(*), count(distinct s.message_id), count(*) filter (where s.status = 'delivered'),
                    count(*) filter (where s.status = 'failed'))
   from (select d.message_id, d.status from {hf}delivery d
         where d.id >= l.low and d.id < l.high order by d.id limit {limit}) s)
from unnest(:lows::uuid[], :highs::uuid[]) with ordinality l(low, high, n)
order by l.n

-- name: recent_dead
-- In which minutes since 1970 the newest dead letters died, and how many of them.
select floor(extract(epoch from s.completed_at) / 60)::bigint, count(*)
from (select d.completed_at from {hf}delivery d
      where d.status = 'failed' and d.discarded_at is null order by d.id desc limit {limit}) s
group by 1 order by 1

-- name: retrying
-- What of a queue and consumer failed and waits for its next run, by error. Those that are due last are looked at
-- first, and only so many: a wait lies ahead, a backlog behind.
select s.error_type, count(*), min(s.first_failed_at), max(s.id::text), max(s.last_error)
from (select d.error_type, d.first_failed_at, d.id, d.last_error from {hf}delivery d
      where d.status = 'pending' and not d.suspect and d.queue = :queue::text and d.consumer = :consumer::text
      order by d.generation desc, d.priority desc, d.run_at desc, d.id desc limit {limit}) s
where s.error_type is not null
group by s.error_type
