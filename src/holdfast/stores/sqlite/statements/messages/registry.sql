-- name: lock_registry
-- Takes the write lock of the transaction without a change.
update {hf}subscription set epoch = epoch where 0

-- name: consumers
-- All consumers with their queue, priority and retry policy, and whether they are paused or blocked.
select c.name, c.queue, c.priority, c.max_attempts, c.retry, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource, c.flow, c.flow_override, c.keep
from {hf}consumer c order by c.name

-- name: named_consumers
-- The rows of `consumers` for these names.
select c.name, c.queue, c.priority, c.max_attempts, c.retry, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource, c.flow, c.flow_override, c.keep
from {hf}consumer c where c.name in (select value from json_each(:names))

-- name: active_subscriptions
-- The subscriptions of these consumers.
select s.pattern, s.consumer from {hf}subscription s where s.retired_at is null and s.consumer in (select value from json_each(:names))

-- name: save_consumers
-- Adds or updates consumers; pauses and blocks stay.
-- each: consumers
insert into {hf}consumer (name, queue, priority, max_attempts, retry, generation, flow, keep)
values (:name, :queue, :priority, :max_attempts, :retry, :generation, :flow, :keep)
on conflict (name) do update
set queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
    retry = excluded.retry, flow = excluded.flow, keep = excluded.keep

-- name: save_subscriptions
-- Activates subscriptions; a reactivated one continues from its mark.
-- each: subscriptions
insert into {hf}subscription (pattern, consumer, epoch, since_epoch, from_start, resumed, mark_position)
values (:pattern, :consumer, :epoch, :epoch, :from_start, (select coalesce(max(m.position), 0) from {hf}message m),
        case when :from_start then 0 else (select coalesce(max(m.position), 0) from {hf}message m) end)
on conflict (pattern, consumer) do update
set epoch = excluded.epoch, since_epoch = excluded.since_epoch, resumed = excluded.resumed, retired_at = null

-- name: renew_epochs
-- Gives these consumers' subscriptions a new epoch, so that publishers reload them.
update {hf}subscription set epoch = :epoch where consumer in (select value from json_each(:consumers))

-- name: retire_subscription
-- Ends a subscription; existing deliveries stay.
update {hf}subscription set retired_at = {now}, epoch = :epoch
where pattern = :pattern and consumer = :consumer and retired_at is null
returning consumer

-- name: catch_up_marks
-- The log position of each group of subscriptions, and the position up to which it may read. SQLite has one writer at a
-- time, so positions are in the order of commits.
select '0', s.mark_position, max(s.epoch), '0'
from {hf}subscription s
where s.retired_at is null and s.mark_position < (select coalesce(max(m.position), 0) from {hf}message m)
group by s.mark_position
order by s.mark_position

-- name: catch_up_scan
-- Messages whose publisher did not know a subscription, each with the consumers that still need a delivery.
with late as materialized (
  select m.id, m.type, m.generation, m.sub_epoch, m.position, json_extract(m.headers, '$.tenant') as tenant
  from {hf}message m
  where m.position > :mark_position and m.sub_epoch < :epoch
  order by m.position limit :limit)
select '0' as tx, l.position, l.id, l.generation, s.consumer, c.queue, c.priority, c.generation as since
from late l
left join ({hf}subscription s join {hf}consumer c on c.name = s.consumer
           left join {hf}endpoint e on e.consumer = s.consumer)
  on s.mark_position = :mark_position and s.epoch <= :epoch and s.retired_at is null and l.sub_epoch < s.since_epoch
  and (s.pattern = l.type or s.pattern = '*'
       or (substr(s.pattern, -2) = '.*'
           and substr(l.type, 1, length(s.pattern) - 1) = substr(s.pattern, 1, length(s.pattern) - 1)))
  and (e.tenant is null or e.tenant = l.tenant)
  and (c.pruned_to is null or l.id > c.pruned_to)
order by l.position

-- name: catch_up_advance
-- Moves the mark of a group; to the newest message without a position.
update {hf}subscription
set mark_position = coalesce(nullif(:new_position, 0), (select coalesce(max(m.position), 0) from {hf}message m))
where mark_position = :mark_position and epoch <= :epoch and retired_at is null

-- name: database_identity
-- The open files of this connection in the third column, the main file first. The table-valued form of this pragma
-- would begin a read transaction.
pragma database_list

-- name: queue_flows
-- The declared flow settings of these queues.
select q.name, q.flow from {hf}queue q where q.name in (select value from json_each(:names))

-- name: save_queue_flow
-- Declares the flow settings of a queue; its pause and the values of operators stay.
insert into {hf}queue (name, flow) values (:name, :flow)
on conflict (name) do update set flow = excluded.flow
