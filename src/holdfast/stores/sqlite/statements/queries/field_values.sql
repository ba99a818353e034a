-- name: field_values
-- The values of a header or payload field in the deliveries of each lane, from a bounded number of each: waiting ones in
-- the order of their claims, running ones, and dead letters from the newest on. A large payload has no value.
-- each: lanes
with field(path) as (select '$' || group_concat('."' || j.value || '"', '') from json_each(:path) j),
sampled(message_id) as (
  select * from (
    select d.message_id from {hf}delivery d
    where :state = 'pending' and d.status = 'pending' and not d.suspect and d.queue = :queue and d.consumer = :consumer
    order by d.generation, d.priority, d.run_at limit :bound)
  union all
  select * from (
    select d.message_id from {hf}delivery d
    where :state = 'in_flight' and d.status = 'in_flight' and d.queue = :queue and d.consumer = :consumer limit :bound)
  union all
  select * from (
    select d.message_id from {hf}delivery d
    where :state = 'failed' and d.status = 'failed' and d.consumer = :consumer and d.queue = :queue
      and d.discarded_at is null
    order by d.completed_at desc limit :bound))
select :n, s.value, count(*)
from (
  select substr(case
    when :header then json_extract(m.headers, f.path)
    when length(m.payload) <= 65536 then json_extract(m.payload, f.path) end, 1, 200) as value
  from sampled x cross join {hf}message m on m.id = x.message_id cross join field f) s
group by s.value
