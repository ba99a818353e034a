-- name: lock_registry
-- Serializes registrations, so that epochs become visible in order; publishers only read.
lock table {hf}subscription in share row exclusive mode

-- name: consumers
-- All consumers with their queue, priority and retry policy, and whether they are paused or blocked.
select c.name, c.queue, c.priority, c.max_attempts, c.retry::text, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource, c.flow, c.flow_override, c.keep
from {hf}consumer c order by c.name

-- name: named_consumers
-- The rows of `consumers` for these names.
select c.name, c.queue, c.priority, c.max_attempts, c.retry::text, c.generation, c.registered_at,
       c.paused_at, c.blocked_until, c.blocked_resource, c.flow, c.flow_override, c.keep
from {hf}consumer c where c.name = any (:names::text[])

-- name: active_subscriptions
-- The subscriptions of these consumers.
select s.pattern, s.consumer from {hf}subscription s where s.retired_at is null and s.consumer = any (:names::text[])

-- name: save_consumers
-- Adds or updates consumers; pauses and blocks stay.
insert into {hf}consumer (name, queue, priority, max_attempts, retry, generation, flow, keep)
select c.name, c.queue, c.priority, c.max_attempts, c.retry::jsonb, :generation::bigint, c.flow, c.keep::double precision
from unnest(:name::text[], :queue::text[], :priority::smallint[], :max_attempts::integer[], :retry::text[],
            :flow::text[], :keep::text[])
       c (name, queue, priority, max_attempts, retry, flow, keep)
on conflict (name) do update
set queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
    retry = excluded.retry, flow = excluded.flow, keep = excluded.keep

-- name: save_subscriptions
-- Activates subscriptions in this snapshot; a reactivated one continues from its mark.
insert into {hf}subscription (pattern, consumer, epoch, since_epoch, from_start, mark_tx)
select s.pattern, s.consumer, :epoch::bigint, :epoch::bigint, s.from_start,
       case when s.from_start then '0'::xid8 else pg_snapshot_xmin(pg_current_snapshot()) end
from unnest(:pattern::text[], :consumer::text[], :from_start::boolean[]) s (pattern, consumer, from_start)
on conflict (pattern, consumer) do update
set epoch = excluded.epoch, since_epoch = excluded.since_epoch, resumed = excluded.resumed, retired_at = null

-- name: renew_epochs
-- Gives these consumers' subscriptions a new epoch, so that publishers reload them.
update {hf}subscription set epoch = :epoch::bigint where consumer = any (:consumers::text[])

-- name: retire_subscription
-- Ends a subscription; existing deliveries stay.
update {hf}subscription set retired_at = now(), epoch = :epoch::bigint
where pattern = :pattern::text and consumer = :consumer::text and retired_at is null
returning consumer

-- name: catch_up_marks
-- The log position of each group of subscriptions, and the position up to which it may read.
select s.mark_tx::text, s.mark_position, max(s.epoch), pg_snapshot_xmin(pg_current_snapshot())::text
from {hf}subscription s
where s.retired_at is null and s.mark_tx < pg_snapshot_xmin(pg_current_snapshot())
group by s.mark_tx, s.mark_position
order by s.mark_tx, s.mark_position

-- name: catch_up_scan
-- Messages whose publisher did not know a subscription, each with the consumers that still need a delivery.
with late as materialized (
  select m.id, m.type, m.generation, m.sub_epoch, m.tx, m.position, m.headers ->> 'tenant' as tenant
  from {hf}message m
  where (m.tx, m.position) > (:mark_tx::text::xid8, :mark_position::bigint) and m.tx < :horizon::text::xid8
    and m.sub_epoch < :epoch::bigint
  order by m.tx, m.position limit {limit})
select l.tx::text, l.position, l.id, l.generation, s.consumer, c.queue, c.priority, c.generation as since
from late l
left join ({hf}subscription s join {hf}consumer c on c.name = s.consumer
           left join {hf}endpoint e on e.consumer = s.consumer)
  on s.mark_tx = :mark_tx::text::xid8 and s.mark_position = :mark_position::bigint and s.epoch <= :epoch::bigint
  and s.retired_at is null and l.sub_epoch < s.since_epoch
  and (s.pattern = l.type or s.pattern = '*'
       or (s.pattern like '%.*' and starts_with(l.type, left(s.pattern, -1))))
  and (e.tenant is null or e.tenant = l.tenant)
  and (s.from_start or not pg_visible_in_snapshot(l.tx, s.activated))
  -- A publisher that was open at the activation may have an id older than deliveries that were pruned since.
  and (c.pruned_to is null or l.id > c.pruned_to or not pg_visible_in_snapshot(l.tx, s.resumed))
order by l.tx, l.position

-- name: catch_up_advance
-- Moves the mark of a group; a subscription that was added since has a newer epoch and keeps its mark.
update {hf}subscription
set mark_tx = :new_tx::text::xid8, mark_position = :new_position::bigint
where mark_tx = :mark_tx::text::xid8 and mark_position = :mark_position::bigint and epoch <= :epoch::bigint
  and retired_at is null

-- name: database_identity
-- The database of this connection. The start time of the server differs between any two servers, also between copies.
select current_database()::text, extract(epoch from pg_postmaster_start_time())::text

-- name: queue_flows
-- The declared flow settings of these queues.
select q.name, q.flow from {hf}queue q where q.name = any (:names::text[])

-- name: save_queue_flow
-- Declares the flow settings of a queue; its pause and the values of operators stay.
insert into {hf}queue (name, flow) values (:name::text, :flow::text)
on conflict (name) do update set flow = excluded.flow
