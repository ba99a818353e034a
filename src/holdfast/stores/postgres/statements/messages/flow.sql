-- name: publish_flow
-- Stores messages without a key and their deliveries, some with a flow key; returns the newest subscription epoch.
with stored as (
  insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
  select m.id, m.type, m.source, m.payload::jsonb, m.headers::jsonb, m.generation,
         coalesce(m.occurred_at, now()), m.sub_epoch
  from unnest(:id::uuid[], :type::text[], :source::text[], :payload::text[], :headers::text[],
              :generation::bigint[], :occurred_at::timestamptz[], :sub_epoch::bigint[])
         m (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
  returning id, position),
addressed as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
                            flow_key, flow_seq)
  select d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.max_attempts,
         coalesce(d.run_at, now() + d.delay, now()), d.retry::jsonb, d.flow_key, s.position
  from unnest(:delivery_id::uuid[], :message_id::uuid[], :consumer::text[], :queue::text[], :priority::smallint[],
              :delivery_generation::bigint[], :max_attempts::integer[], :delay::interval[],
              :run_at::timestamptz[], :retry::text[], :flow_key::text[], :ordered::boolean[])
         d (id, message_id, consumer, queue, priority, generation, max_attempts, delay, run_at, retry, flow_key, ordered)
  left join stored s on s.id = d.message_id and d.ordered)
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: adopt_deliveries
-- Gives keys to pending deliveries that have none; the position of the message is the order of its publish.
update {hf}delivery d
set flow_key = a.flow_key, flow_seq = case when a.ordered then m.position end
from unnest(:delivery_id::uuid[], :flow_key::text[], :ordered::boolean[]) a (id, flow_key, ordered)
cross join {hf}message m
where d.id = any (array[a.id]) and d.status = 'pending'
  and (d.flow_key is null or (d.flow_seq is null) = a.ordered) and m.id = d.message_id
returning d.id

-- name: place_deliveries
-- Gives the new deliveries of one publish the positions of its messages in the order of the call: messages with an
-- idempotency key are inserted in the order of their keys.
with given as materialized (
  select d.id, p.place, m.position
  from unnest(:delivery_id::uuid[], :place::bigint[]) p (id, place)
  join {hf}delivery d on d.id = p.id
  join {hf}message m on m.id = d.message_id),
placed as (
  select g.id, g.place, dense_rank() over (order by g.place) as number from given g),
positions as (
  select p.position, row_number() over (order by p.position) as number from (select distinct g.position from given g) p)
update {hf}delivery d
set flow_seq = p.position
from placed g join positions p on p.number = g.number
where d.id = g.id and d.flow_seq is not null and d.flow_seq <> p.position
