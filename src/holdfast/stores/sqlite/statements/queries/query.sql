-- fragment: delivery
d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.status, d.run_at, d.attempts,
coalesce(d.max_attempts, c.max_attempts) as max_attempts,
d.fence, d.lease_until, d.locked_by, d.suspect, d.holds, d.expiries, d.last_error, d.error_type,
d.fingerprint, d.first_failed_at, d.failure_history, d.created_at, d.claimed_at, d.completed_at, d.discarded_at

-- fragment: message
m.id, m.type, m.source, m.key, m.payload, m.headers, m.generation, m.occurred_at, m.position

-- name: list_deliveries
-- A page of deliveries, newest first, with the type, source and key of their message.
select {delivery}, m.type, m.source, m.key
from {hf}delivery d join {hf}message m on m.id = d.message_id left join {hf}consumer c on c.name = d.consumer
where true {where}
order by d.id desc limit :limit

-- name: following_deliveries
-- The deliveries that follow an id, oldest first. Ids begin with their time.
select {delivery}, m.type, m.source, m.key
from {hf}delivery d join {hf}message m on m.id = d.message_id left join {hf}consumer c on c.name = d.consumer
where d.id > :after {where}
order by d.id limit :limit

-- name: recent_runs
-- The deliveries with a run that was recorded since a time, oldest first, by the index of the runs of each consumer.
select r.delivery_id, r.completed_at
from {hf}consumer c cross join {hf}run r on r.consumer = c.name and r.completed_at >= :since
order by r.completed_at limit :limit

-- name: message_deliveries
-- All deliveries of one message, which are adjacent in the index.
select {delivery}, m.type, m.source, m.key
from {hf}delivery d join {hf}message m on m.id = d.message_id left join {hf}consumer c on c.name = d.consumer
where d.id between :low and :high and d.message_id = :message_id
order by d.consumer

-- fragment: where_ids
and d.id in (select value from json_each(:ids))
-- fragment: where_before
and d.id < :before
-- fragment: where_status
and d.status in (select value from json_each(:statuses))
-- fragment: where_pending
and d.status = 'pending'
-- fragment: where_in_flight
and d.status = 'in_flight'
-- fragment: where_delivered
and d.status = 'delivered'
-- fragment: where_failed
and d.status = 'failed'
-- fragment: where_discarded
and d.status = 'failed' and d.discarded_at is not null
-- fragment: where_not_discarded
and d.discarded_at is null
-- fragment: where_replayed
and d.failure_history <> '[]'
-- fragment: where_consumers
and d.consumer in (select value from json_each(:consumers))
-- fragment: where_consumer
and d.consumer = :consumer
-- fragment: where_queue
and d.queue = :queue
-- fragment: where_error_type
and (d.error_type = :error_type or substr(d.error_type, -length(:error_type) - 1) = '.' || :error_type)
-- fragment: where_group
and d.fingerprint = :group
-- fragment: where_message
and d.message_id = :message_id and d.id between :low and :high
-- fragment: where_type
and m.type = :type
-- fragment: where_failed_type
and coalesce(d.failed_type, (select t.type from {hf}message t where t.id = d.message_id)) = :type
-- fragment: where_failed_type_below
and substr(coalesce(d.failed_type, (select t.type from {hf}message t where t.id = d.message_id)), 1,
           length(:type_prefix)) = :type_prefix
-- fragment: where_since
and coalesce(d.completed_at, d.created_at) >= :since
-- fragment: where_until
and coalesce(d.completed_at, d.created_at) < :until

-- name: list_messages
-- A page of messages, newest first.
select {message} from {hf}message m where true {where} order by m.id desc limit :limit

-- fragment: where_message_before
and m.id < :before
-- fragment: where_message_type
and m.type = :type
-- fragment: where_message_source
and m.source = :source
-- fragment: where_message_key
and m.key = :key and m.source in (
  with recursive known (source) as (
    select min(s.source) from {hf}message s where s.key is not null
    union all
    select (select min(n.source) from {hf}message n where n.key is not null and n.source > known.source)
    from known where known.source is not null)
  select known.source from known where known.source is not null)
-- fragment: where_message_id
and m.id = :message_id

-- name: runs
-- The recorded attempts of a delivery.
select r.attempt, r.fence, r.outcome, r.error_type, r.error, r.trace, r.worker, r.started_at, r.completed_at, r.detail,
       r.generation
from {hf}run r where r.delivery_id = :delivery_id order by r.fence

-- name: clock
-- The current time of the database, whose clock is authoritative.
select {now}

-- name: next_due_in
-- The time when the next delivery of these consumers and queues can be claimed or rescued, and the current time. Deliveries
-- of a paused key, behind the first of an ordered key, or behind a dead letter that blocks it cannot be claimed.
select min(o.at), {now} from (
  select max(d.run_at, coalesce(c.blocked_until, d.run_at)) as at
  from (
    select d.consumer, d.queue, d.run_at, d.flow_key, d.flow_seq from {hf}delivery d
    where d.status = 'pending' and d.flow_seq is null and d.consumer in (select value from json_each(:consumers))
    union all
    -- The other columns are those of the row with the minimum.
    select d.consumer, d.queue, d.run_at, d.flow_key, min(d.flow_seq) from {hf}delivery d
    where d.status = 'pending' and d.flow_seq is not null and d.consumer in (select value from json_each(:consumers))
    group by d.consumer, d.flow_key) d
  left join {hf}queue q on q.name = d.queue
  left join {hf}consumer c on c.name = d.consumer
  where q.paused_at is null and c.paused_at is null
    and d.consumer not in (select p.name from {hf}projector p where p.held_until > {now})
    and (:queues is null or d.queue in (select value from json_each(:queues)))
    and (d.flow_key is null or not exists (
      select 1 from {hf}flow_pause p where p.consumer = d.consumer and p.flow_key = d.flow_key))
    and (d.flow_seq is null or coalesce(c.flow, '') not like '%"order":"block"%' or not exists (
      select 1 from {hf}delivery x
      where x.status = 'failed' and x.discarded_at is null and x.flow_seq is not null and x.consumer = d.consumer
        and x.flow_key = d.flow_key and x.flow_seq < d.flow_seq))
  union all
  select max(d.lease_until, coalesce(w.alive_until, d.lease_until)) from {hf}delivery d
  left join {hf}worker w on w.id = d.locked_by
  where d.status = 'in_flight' and d.consumer in (select value from json_each(:consumers))
    and (:queues is null or d.queue in (select value from json_each(:queues)))) o

-- name: first_trace
-- The trace of the first recorded run of a delivery that has one.
select json_extract(r.detail, '$.traceparent') from {hf}run r
where r.delivery_id = :delivery_id and r.detail is not null order by r.fence limit 1
