-- name: lock_consumer_flow
-- The flow settings of a consumer and the values that an operator set; locked, so that two changes do not lose one.
select c.flow, c.flow_override from {hf}consumer c where c.name = :name::text for update

-- name: lock_queue_flow
-- The flow settings of a queue and the values that an operator set; locked, so that two changes do not lose one.
select q.flow, q.flow_override from {hf}queue q where q.name = :name::text for update

-- name: override_consumer_flow
-- Sets the operator's values of a consumer; null means the declared ones.
update {hf}consumer set flow_override = :flow_override::text where name = :name::text

-- name: override_queue_flow
-- Sets the operator's values of a queue; null means the declared ones.
update {hf}queue set flow_override = :flow_override::text where name = :name::text

-- name: pause_key
-- Excludes one key of a consumer from claims; nothing if it is paused.
insert into {hf}flow_pause (consumer, flow_key) values (:consumer::text, :flow_key::text)
on conflict (consumer, flow_key) do nothing
returning flow_key

-- name: resume_key
-- Includes one key of a consumer in claims again; nothing if it is not paused.
delete from {hf}flow_pause where consumer = :consumer::text and flow_key = :flow_key::text
returning flow_key

-- name: wake_key
-- Makes the next due delivery of a key in each lane due now, so that a worker that has passed it sees it again.
update {hf}delivery w set run_at = now()
where w.status = 'pending' and w.id = any (array(
  select h.id from (
    select d.id, d.run_at from {hf}delivery d
    where {keyed_ordered} and d.consumer = :consumer::text and d.flow_key = :flow_key::text
    order by d.consumer, d.flow_key, d.flow_seq limit 1) h
  where h.run_at <= now()
  union all
  select f.id
  from {key_lanes}
  cross join lateral (
    select d.id from {hf}delivery d where {key_in_lane} and d.flow_key = :flow_key::text and d.run_at <= now()
    order by d.queue, d.consumer, d.generation, d.priority, d.flow_key, d.run_at, d.id limit 1) f))
returning w.id
