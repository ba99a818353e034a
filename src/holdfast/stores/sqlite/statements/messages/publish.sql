-- name: subscriptions
-- All subscriptions with the queue, priority and tenant of their consumer; retired ones still have an
-- epoch.
select s.pattern, s.consumer, c.queue, c.priority, c.generation, s.epoch, s.retired_at is null as active, e.tenant,
       c.flow
from {hf}subscription s join {hf}consumer c on c.name = s.consumer
left join {hf}endpoint e on e.consumer = s.consumer

-- name: publish
-- Stores messages without a key and their deliveries; returns the newest subscription epoch.
-- each: messages
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
values (:id, :type, :source, :payload, :headers, :generation, coalesce(:occurred_at, {now}), :sub_epoch);
-- each: deliveries
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
  failure_history)
values (:delivery_id, :message_id, :consumer, :queue, :priority, :delivery_generation, :max_attempts,
        coalesce(:run_at, {now} + :delay, {now}), :retry, '[]');
-- once
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: publish_one
-- Stores one message without a key and its only delivery, unless there is a newer subscription; returns
-- the newest subscription epoch.
-- once
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
select :id, :type, :source, :payload, :headers, :generation, coalesce(:occurred_at, {now}), :sub_epoch
where (select coalesce(max(s.epoch), 0) from {hf}subscription s) <= :sub_epoch;
-- once
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
  failure_history)
select :delivery_id, :message_id, :consumer, :queue, :priority, :delivery_generation, :max_attempts,
       coalesce(:run_at, {now} + :delay, {now}), :retry, '[]'
where exists (select 1 from {hf}message m where m.id = :message_id);
-- once
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: publish_alike
-- Stores messages without a key that differ only in their payload, each with one delivery to the same consumer, unless
-- there is a subscription newer than `known`; returns the newest subscription epoch.
-- all: messages
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
select json_extract(m.value, '$[0]'), :type, :source, json_extract(m.value, '$[2]'), :headers, :generation, {now},
       :sub_epoch
from json_each(:rows) m
where (select coalesce(max(s.epoch), 0) from {hf}subscription s) <= :known;
-- all: messages
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, run_at, failure_history)
select json_extract(m.value, '$[1]'), json_extract(m.value, '$[0]'), :consumer, :queue, :priority,
       :delivery_generation, {now}, '[]'
from json_each(:rows) m
where :known >= (select coalesce(max(s.epoch), 0) from {hf}subscription s);
-- once
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: load_messages
-- Streams messages without a key that occur now.
insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch, occurred_at)
values (?, ?, ?, ?, ?, ?, ?, {now})

-- name: load_deliveries
-- Streams deliveries that are due now.
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, run_at, failure_history)
values (?, ?, ?, ?, ?, ?, {now}, '[]')

-- name: newest_epoch
-- The newest subscription epoch.
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: publish_keyed
-- Stores the messages whose key is new in its source and scope, with their deliveries; returns them and the newest
-- epoch.
-- each: messages
insert into {hf}message (id, type, source, key, key_scope, payload, headers, generation, occurred_at, sub_epoch)
values (:id, :type, :source, :key, :key_scope, :payload, :headers, :generation, coalesce(:occurred_at, {now}), :sub_epoch)
on conflict do nothing
returning id, (select coalesce(max(e.epoch), 0) from {hf}subscription e);
-- each: deliveries
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
  failure_history)
select :delivery_id, :message_id, :consumer, :queue, :priority, :delivery_generation, :max_attempts,
       coalesce(:run_at, {now} + :delay, {now}), :retry, '[]'
where exists (select 1 from {hf}message m where m.id = :message_id)

-- name: publish_unique
-- Stores one job unless another with its unique key is pending or in flight; returns the id that was stored.
-- once
insert into {hf}delivery
  (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry, unique_key, failure_history)
values (:delivery_id, :message_id, :consumer, :queue, :priority, :generation, :max_attempts,
        coalesce(:run_at, {now} + :delay, {now}), :retry, :unique_key, '[]')
on conflict (consumer, unique_key) where unique_key is not null and status in ('pending', 'in_flight') do nothing
returning message_id;
-- each: returned
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
values (:message_id, :type, :source, :payload, :headers, :generation, coalesce(:occurred_at, {now}), :sub_epoch)
returning id

-- name: find_unique
-- The message of the unfinished job with a unique key.
select d.message_id from {hf}delivery d
where d.consumer = :consumer and d.unique_key = :unique_key and d.status in ('pending', 'in_flight')

-- name: find_keyed
-- The messages that already have these keys.
-- each: keys
select :source, :key, :key_scope, 0, m.id, m.type, m.payload
from {hf}message m where m.source = :source and m.key = :key
union all
select :source, :key, :key_scope, 1, m.id, m.type, m.payload
from {hf}message m where m.key_scope = :key_scope and m.key = :key

-- name: withdraw_deliveries
-- Removes deliveries that this transaction created for outdated subscriptions.
delete from {hf}delivery where id in (select value from json_each(:ids))

-- name: insert_deliveries
-- Adds missing deliveries; one per message and consumer, also if it runs several times.
-- each: deliveries
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, retry, failure_history)
values (:delivery_id, :message_id, :consumer, :queue, :priority, :delivery_generation, :max_attempts, :retry, '[]')
on conflict (id) do nothing
returning id
