-- name: subscriptions
-- All subscriptions with the queue, priority and tenant of their consumer; retired ones still have an
-- epoch.
select s.pattern, s.consumer, c.queue, c.priority, c.generation, s.epoch, s.retired_at is null as active, e.tenant,
       c.flow
from {hf}subscription s join {hf}consumer c on c.name = s.consumer
left join {hf}endpoint e on e.consumer = s.consumer

-- name: publish
-- Stores messages without a key and their deliveries; returns the newest subscription epoch.
with stored as (
  insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
  select m.id, m.type, m.source, m.payload::jsonb, m.headers::jsonb, m.generation,
         coalesce(m.occurred_at, now()), m.sub_epoch
  from unnest(:id::uuid[], :type::text[], :source::text[], :payload::text[], :headers::text[],
              :generation::bigint[], :occurred_at::timestamptz[], :sub_epoch::bigint[])
         m (id, type, source, payload, headers, generation, occurred_at, sub_epoch)),
addressed as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry)
  select d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.max_attempts,
         coalesce(d.run_at, now() + d.delay, now()), d.retry::jsonb
  from unnest(:delivery_id::uuid[], :message_id::uuid[], :consumer::text[], :queue::text[], :priority::smallint[],
              :delivery_generation::bigint[], :max_attempts::integer[], :delay::interval[],
              :run_at::timestamptz[], :retry::text[])
         d (id, message_id, consumer, queue, priority, generation, max_attempts, delay, run_at, retry))
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: publish_one
-- Stores one message without a key and its only delivery, unless there is a newer subscription; returns
-- the newest subscription epoch. Plain values are cheaper than arrays with one value.
with newest as materialized (select coalesce(max(s.epoch), 0) as epoch from {hf}subscription s),
known as materialized (select n.epoch from newest n where n.epoch <= :sub_epoch::bigint),
stored as (
  insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
  select :id::uuid, :type::text, :source::text, :payload::text::jsonb, :headers::text::jsonb, :generation::bigint,
         coalesce(:occurred_at::timestamptz, now()), :sub_epoch::bigint
  from known),
addressed as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry)
  select :delivery_id::uuid, :message_id::uuid, :consumer::text, :queue::text, :priority::smallint,
         :delivery_generation::bigint, :max_attempts::integer,
         coalesce(:run_at::timestamptz, now() + :delay::interval, now()), :retry::text::jsonb
  from known)
select n.epoch from newest n

-- name: publish_alike
-- Stores messages without a key that differ only in their payload, each with one delivery to the same consumer, unless
-- there is a subscription newer than `known`; returns the newest subscription epoch. It has three arrays instead of
-- eighteen, and it is one statement, so that it needs no transaction.
with newest as materialized (select coalesce(max(s.epoch), 0) as epoch from {hf}subscription s),
alike as materialized (
  select m.id, m.delivery_id, m.payload
  from newest n cross join unnest(:id::text::uuid[], :delivery_id::text::uuid[], :payload::text[])
         m (id, delivery_id, payload)
  where n.epoch <= :known::bigint),
stored as (
  insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch)
  select a.id, :type::text, :source::text, a.payload::jsonb, :headers::text::jsonb, :generation::bigint,
         :sub_epoch::bigint
  from alike a),
addressed as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation)
  select a.delivery_id, a.id, :consumer::text, :queue::text, :priority::smallint, :delivery_generation::bigint
  from alike a)
select n.epoch from newest n

-- name: load_messages
-- Streams messages without a key that occur now.
copy {hf}message (id, type, source, payload, headers, generation, sub_epoch) from stdin

-- name: load_deliveries
-- Streams deliveries that are due now.
copy {hf}delivery (id, message_id, consumer, queue, priority, generation) from stdin

-- name: newest_epoch
-- The newest subscription epoch.
select coalesce(max(s.epoch), 0) from {hf}subscription s

-- name: publish_keyed
-- Stores the messages whose key is new in its source and scope, with their deliveries; returns them and the newest
-- epoch.
with stored as (
  insert into {hf}message (id, type, source, key, key_scope, payload, headers, generation, occurred_at, sub_epoch)
  select m.id, m.type, m.source, m.key, m.key_scope, m.payload::jsonb, m.headers::jsonb, m.generation,
         coalesce(m.occurred_at, now()), m.sub_epoch
  from unnest(:id::uuid[], :type::text[], :source::text[], :key::text[], :key_scope::text[], :payload::text[],
              :headers::text[], :generation::bigint[], :occurred_at::timestamptz[], :sub_epoch::bigint[])
         m (id, type, source, key, key_scope, payload, headers, generation, occurred_at, sub_epoch)
  on conflict do nothing
  returning id),
addressed as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry)
  select d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.max_attempts,
         coalesce(d.run_at, now() + d.delay, now()), d.retry::jsonb
  from unnest(:delivery_id::uuid[], :message_id::uuid[], :consumer::text[], :queue::text[], :priority::smallint[],
              :delivery_generation::bigint[], :max_attempts::integer[], :delay::interval[],
              :run_at::timestamptz[], :retry::text[])
         d (id, message_id, consumer, queue, priority, generation, max_attempts, delay, run_at, retry)
  where d.message_id in (select s.id from stored s))
select s.id, (select coalesce(max(e.epoch), 0) from {hf}subscription e) from stored s

-- name: publish_unique
-- Stores one job unless another with its unique key is pending or in flight; returns the id that was stored.
with addressed as (
  insert into {hf}delivery
    (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry, unique_key)
  values (:delivery_id::uuid, :message_id::uuid, :consumer::text, :queue::text, :priority::smallint,
          :generation::bigint, :max_attempts::integer, coalesce(:run_at::timestamptz, now() + :delay::interval, now()),
          :retry::text::jsonb, :unique_key::text)
  on conflict (consumer, unique_key) where unique_key is not null and status in ('pending', 'in_flight') do nothing
  returning message_id),
stored as (
  insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch)
  select a.message_id, :type::text, :source::text, :payload::text::jsonb, :headers::text::jsonb, :generation::bigint,
         coalesce(:occurred_at::timestamptz, now()), :sub_epoch::bigint
  from addressed a
  returning id)
select s.id from stored s

-- name: find_unique
-- The message of the unfinished job with a unique key.
select d.message_id from {hf}delivery d
where d.consumer = :consumer::text and d.unique_key = :unique_key::text and d.status in ('pending', 'in_flight')

-- name: find_keyed
-- The messages that already have these keys; a second statement, because the conflicting row may have just committed.
select k.source, k.key, k.key_scope, false, m.id, m.type, m.payload::text
from unnest(:source::text[], :key::text[], :key_scope::text[]) k (source, key, key_scope)
join {hf}message m on m.source = k.source and m.key = k.key
union all
select k.source, k.key, k.key_scope, true, m.id, m.type, m.payload::text
from unnest(:source::text[], :key::text[], :key_scope::text[]) k (source, key, key_scope)
join {hf}message m on m.key_scope = k.key_scope and m.key = k.key

-- name: withdraw_deliveries
-- Removes deliveries that this transaction created for outdated subscriptions.
delete from {hf}delivery where id = any (:ids::uuid[])

-- name: insert_deliveries
-- Adds missing deliveries; one per message and consumer, also if it runs several times.
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, retry)
select d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.max_attempts, d.retry::jsonb
from unnest(:delivery_id::uuid[], :message_id::uuid[], :consumer::text[], :queue::text[], :priority::smallint[],
            :delivery_generation::bigint[], :max_attempts::integer[], :retry::text[])
       d (id, message_id, consumer, queue, priority, generation, max_attempts, retry)
on conflict (id) do nothing
returning id
