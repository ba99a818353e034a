-- name: lock_registry
-- Changes nothing and takes the write lock, if the transaction does not hold it yet.
update {hf}subscription set epoch = epoch where 0

-- name: consumers
-- Every consumer with where its deliveries go and whether it may run.
select c.name, c.queue, c.priority, c.max_attempts, c.retry, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource
from {hf}consumer c order by c.name

-- name: named_consumers
-- These consumers, as `consumers` has them.
select c.name, c.queue, c.priority, c.max_attempts, c.retry, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource
from {hf}consumer c where c.name in (select value from json_each(:names))

-- name: active_subscriptions
-- What these consumers subscribe to.
select s.pattern, s.consumer from {hf}subscription s where s.retired_at is null and s.consumer in (select value from json_each(:names))

-- name: save_consumers
-- Declares consumers, or changes what they declared; pauses and blocks stay.
-- each: consumers
insert into {hf}consumer (name, queue, priority, max_attempts, retry, generation)
values (:name, :queue, :priority, :max_attempts, :retry, :generation)
on conflict (name) do update
set queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts, retry = excluded.retry

-- name: save_subscriptions
-- Activates subscriptions; one that comes back continues from its mark.
-- each: subscriptions
insert into {hf}subscription (pattern, consumer, epoch, since_epoch, from_start, resumed, mark_position)
values (:pattern, :consumer, :epoch, :epoch, :from_start, (select coalesce(max(m.position), 0) from {hf}message m),
        case when :from_start then 0 else (select coalesce(max(m.position), 0) from {hf}message m) end)
on conflict (pattern, consumer) do update
set epoch = excluded.epoch, since_epoch = excluded.since_epoch, resumed = excluded.resumed, retired_at = null

-- name: renew_epochs
-- Makes every publisher load these consumers' subscriptions again; what they know already stays known.
update {hf}subscription set epoch = :epoch where consumer in (select value from json_each(:consumers))

-- name: retire_subscription
-- Ends a subscription; deliveries that exist stay.
update {hf}subscription set retired_at = {now}, epoch = :epoch
where pattern = :pattern and consumer = :consumer and retired_at is null
returning consumer

-- name: catch_up_marks
-- How far each group of subscriptions has seen the log of messages, and how far it may look: one writer at a
-- time makes position the order of commits.
select '0', s.mark_position, max(s.epoch), '0'
from {hf}subscription s
where s.retired_at is null and s.mark_position < (select coalesce(max(m.position), 0) from {hf}message m)
group by s.mark_position
order by s.mark_position

-- name: catch_up_scan
-- Messages whose publisher did not know a subscription, each with the consumers it must still go to.
with late as materialized (
  select m.id, m.type, m.generation, m.sub_epoch, m.position, json_extract(m.headers, '$.tenant') as tenant
  from {hf}message m
  where m.position > :mark_position and m.sub_epoch < :epoch
  order by m.position limit :limit)
select '0', l.position, l.id, l.generation, s.consumer, c.queue, c.priority, c.generation
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
-- Moves a group's mark on; to the newest message when no position is given.
update {hf}subscription
set mark_position = coalesce(nullif(:new_position, 0), (select coalesce(max(m.position), 0) from {hf}message m))
where mark_position = :mark_position and epoch <= :epoch and retired_at is null

-- name: database_identity
-- The files this connection has open, the main one first, in the third column. The table-valued form of this pragma
-- would begin a read transaction.
pragma database_list
