-- name: replay
-- Puts failed deliveries back to pending in place, with history and audit; returns what was replayed.
select r.delivery_id, r.delivery_consumer, r.to_generation, r.new_fence
from (select set_config('holdfast.request_id', coalesce(:request_id::text, ''), true)) acting
cross join lateral {hf}replay(:ids::uuid[], :generation::bigint, :actor::text, :reason::text, :rerun::boolean) r

-- name: live_generation
-- The generation a replay would give this consumer's deliveries.
select {hf}live_generation(:consumer::text)

-- name: discard
-- Sets dead letters aside for good, audited; they stay queryable.
with u as (
  update {hf}delivery d set discarded_at = now(), fence = d.fence + 1
  where d.id = any (:ids::uuid[]) and d.status = 'failed' and d.discarded_at is null
  returning d.id),
a as (
  insert into {hf}audit (actor, action, kind, target, reason, request_id)
  select :actor::text, 'discard', 'delivery', u.id::text, :reason::text, :request_id::text from u)
select u.id from u

-- name: cancel
-- Cancels deliveries that are not done; the fence rises, so one in flight cannot finish any more.
with u as (
  update {hf}delivery d
  set status = 'failed', completed_at = now(), discarded_at = now(), fence = d.fence + 1,
      last_error = coalesce(:reason::text, 'cancelled'), lease_until = null, locked_by = null
  where d.id = any (:ids::uuid[]) and d.status in ('pending', 'in_flight')
  returning d.id),
a as (
  insert into {hf}audit (actor, action, kind, target, reason, request_id)
  select :actor::text, 'cancel', 'delivery', u.id::text, :reason::text, :request_id::text from u)
select u.id from u

-- name: pause_queue
-- Leaves a queue's lanes out of every claim until it is resumed.
insert into {hf}queue (name, paused_at) values (:name::text, now())
on conflict (name) do update set paused_at = coalesce({hf}queue.paused_at, now())
returning name

-- name: resume_queue
-- Lets a queue's lanes be claimed again.
update {hf}queue set paused_at = null where name = :name::text and paused_at is not null returning name

-- name: pause_consumer
-- Leaves a consumer's lanes out of every claim until it is resumed.
update {hf}consumer set paused_at = coalesce(paused_at, now()) where name = :name::text returning name

-- name: resume_consumer
-- Lets a consumer's lanes be claimed again.
update {hf}consumer set paused_at = null where name = :name::text and paused_at is not null returning name

-- name: lock_consumer
-- Locks a consumer, and says whether it is blocked.
select c.blocked_until is not null from {hf}consumer c where c.name = :name::text for update

-- name: block_consumer
-- Blocks a consumer: every worker leaves it alone for half as long as the outage has lasted, between the two bounds.
update {hf}consumer
set blocked_at = coalesce(blocked_at, now()), blocked_resource = :resource::text,
    blocked_until = now() + least(:longest::interval, greatest(:shortest::interval, (now() - blocked_at) / 2))
where name = :name::text
returning blocked_until, now()

-- name: unblock_consumer
-- Lets a blocked consumer run again.
update {hf}consumer set blocked_until = null, blocked_resource = null, blocked_at = null
where name = :name::text and blocked_until is not null returning name

-- name: write_audit
-- Records who did what to which item, and why.
insert into {hf}audit (actor, action, kind, target, reason, detail, request_id)
values (:actor::text, :action::text, :kind::text, :target::text, :reason::text, :detail::text::jsonb,
        :request_id::text)

-- name: audit
-- The newest audit entries below a cursor.
select a.id, a.at, a.actor, a.action, a.kind, a.target, a.reason, a.detail::text, a.request_id
from {hf}audit a where a.id < :before::bigint {where}
order by a.id desc limit {limit}

-- fragment: where_target
and a.kind = :kind::text and a.target = :target::text
