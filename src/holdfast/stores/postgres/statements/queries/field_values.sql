-- name: field_values
-- The values of a header or payload field in the deliveries of each lane, from a bounded number of each: waiting ones in
-- the order of their claims, running ones, and dead letters from the newest on. A large payload has no value.
select l.n, s.value, count(*)
from unnest(:n::bigint[], :state::text[], :queue::text[], :consumer::text[]) l (n, state, queue, consumer)
cross join lateral (
  select left(case
    when :header::boolean then m.headers #>> :path::text[]
    when pg_column_size(m.payload) <= 65536 then m.payload #>> :path::text[] end, 200) as value
  from (
    (select d.message_id from {hf}delivery d
     where l.state = 'pending' and d.status = 'pending' and not d.suspect and d.queue = l.queue
       and d.consumer = l.consumer
     order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit :bound::bigint)
    union all
    (select d.message_id from {hf}delivery d
     where l.state = 'in_flight' and d.status = 'in_flight' and d.queue = l.queue and d.consumer = l.consumer
     limit :bound::bigint)
    union all
    (select d.message_id from {hf}delivery d
     where l.state = 'failed' and d.status = 'failed' and d.discarded_at is null and d.consumer = l.consumer
       and d.queue = l.queue
     order by d.consumer desc, d.queue desc, d.discarded_at desc, d.completed_at desc limit :bound::bigint)) x
  cross join lateral (select o.headers, o.payload from {hf}message o where o.id = x.message_id) m) s
group by l.n, s.value
