-- name: publish_flow
-- Stores messages without a key and their deliveries, some with a flow key; returns the newest subscription epoch.
-- each: messages
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
values (:id, :type, :source, :payload, :headers, :generation, coalesce(:occurred_at, {now}), :sub_epoch);
-- each: deliveries
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
  failure_history, flow_key, flow_seq)
values (:delivery_id, :message_id, :consumer, :queue, :priority, :delivery_generation, :max_attempts,
        coalesce(:run_at, {now} + :delay, {now}), :retry, '[]', :flow_key,
        case when :ordered then (select m.position from {hf}message m where m.id = :message_id) end);
-- once
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: adopt_deliveries
-- Gives keys to pending deliveries that have none; the position of the message is the order of its publish.
-- each: deliveries
update {hf}delivery
set flow_key = :flow_key,
    flow_seq = case when :ordered then (select m.position from {hf}message m where m.id = message_id) end
where id = :delivery_id and status = 'pending'
  and (flow_key is null or (flow_seq is null) = :ordered)
returning id

-- name: place_deliveries
-- Gives the new deliveries of one publish the positions of its messages in the order of the call: messages with an
-- idempotency key are inserted in the order of their keys.
-- all: deliveries
with given as materialized (
  select d.id, p.value ->> 1 as place, m.position
  from json_each(:rows) p
  join {hf}delivery d on d.id = p.value ->> 0
  join {hf}message m on m.id = d.message_id),
placed as (
  select g.id, g.place, dense_rank() over (order by g.place) as number from given g),
positions as (
  select p.position, row_number() over (order by p.position) as number from (select distinct g.position from given g) p)
update {hf}delivery
set flow_seq = g.position
from (select placed.id, p.position from placed join positions p on p.number = placed.number) g
where {hf}delivery.id = g.id and flow_seq is not null
