-- name: replay
-- Sets failed deliveries back to pending, with history and audit; returns the replayed ones.
select r.delivery_id as id, r.delivery_consumer as consumer, r.to_generation as generation, r.new_fence as fence
from (select set_config('holdfast.request_id', coalesce(:request_id::text, ''), true),
             set_config('holdfast.plan_id', coalesce(:plan::text, ''), true)) acting
cross join lateral {hf}replay(:ids::uuid[], :generation::bigint, :actor::text, :reason::text, :rerun::boolean) r

-- name: live_generation
-- The generation that a replay would give this consumer's deliveries in this queue.
select {hf}live_generation(:consumer::text, :queue::text)

-- name: discard
-- Discards dead letters permanently, audited; they stay queryable.
with u as (
  update {hf}delivery d set discarded_at = now(), fence = d.fence + 1
  where d.id = any (:ids::uuid[]) and d.status = 'failed' and d.discarded_at is null
  returning d.id),
a as (
  insert into {hf}audit (actor, action, kind, target, reason, request_id, plan_id)
  select :actor::text, 'discard', 'delivery', u.id::text, :reason::text, :request_id::text, :plan::uuid from u)
select u.id from u

-- name: cancel
-- Cancels unfinished deliveries; increments the fence, so that a current run cannot settle, and informs its worker.
with c as materialized (
  select d.id, d.fence, d.locked_by from {hf}delivery d
  where d.id = any (:ids::uuid[]) and d.status in ('pending', 'in_flight')
  for update),
u as (
  update {hf}delivery d
  set status = 'failed', completed_at = now(), discarded_at = now(), fence = d.fence + 1,
      last_error = coalesce(:reason::text, 'cancelled'), lease_until = null, locked_by = null,
      failed_type = (select m.type from {hf}message m where m.id = d.message_id)
  from c where d.id = c.id
  returning d.id),
r as (
  insert into {hf}cancellation (worker, delivery_id, fence)
  select c.locked_by, c.id, c.fence from c where c.locked_by is not null on conflict do nothing),
a as (
  insert into {hf}audit (actor, action, kind, target, reason, request_id, plan_id)
  select :actor::text, 'cancel', 'delivery', u.id::text, :reason::text, :request_id::text, :plan::uuid from u)
select u.id from u

-- name: pause_queue
-- Excludes a queue's lanes from claims until it is resumed.
insert into {hf}queue (name, paused_at) values (:name::text, now())
on conflict (name) do update set paused_at = coalesce({hf}queue.paused_at, now())
returning name

-- name: resume_queue
-- Includes a queue's lanes in claims again.
update {hf}queue set paused_at = null where name = :name::text and paused_at is not null returning name

-- name: pause_consumer
-- Excludes a consumer's lanes from claims until it is resumed.
update {hf}consumer set paused_at = coalesce(paused_at, now()) where name = :name::text returning name

-- name: resume_consumer
-- Includes a consumer's lanes in claims again.
update {hf}consumer set paused_at = null where name = :name::text and paused_at is not null returning name

-- name: lock_consumer
-- Locks a consumer and returns whether it is blocked.
select c.blocked_until is not null from {hf}consumer c where c.name = :name::text for update

-- name: block_consumer
-- Blocks a consumer for half of the duration of its outage so far, within the two bounds.
update {hf}consumer
set blocked_at = coalesce(blocked_at, now()), blocked_resource = :resource::text,
    blocked_until = now() + least(:longest::interval, greatest(:shortest::interval, (now() - blocked_at) / 2))
where name = :name::text
returning blocked_until, now()

-- name: unblock_consumer
-- Unblocks a consumer.
update {hf}consumer set blocked_until = null, blocked_resource = null, blocked_at = null
where name = :name::text and blocked_until is not null returning name

-- name: write_audit
-- Records who did what to which item, and why.
insert into {hf}audit (actor, action, kind, target, reason, detail, request_id, plan_id)
values (:actor::text, :action::text, :kind::text, :target::text, :reason::text, :detail::text::jsonb,
        :request_id::text, null)

-- name: audit
-- The newest audit entries below a cursor.
select a.id, a.at, a.actor, a.action, a.kind, a.target, a.reason, a.detail::text, a.request_id, a.plan_id
from {hf}audit a where a.id < :before::bigint {where}
order by a.id desc limit {limit}

-- fragment: where_target
and a.kind = :kind::text and a.target = :target::text
-- fragment: where_audit_actor
and a.actor = :actor::text
-- fragment: where_audit_action
and a.action = :action::text
-- fragment: where_audit_kind
and a.kind = :kind::text
-- fragment: where_audit_target
and a.target = :target::text
-- fragment: where_audit_since
and a.at >= :since::timestamptz
-- fragment: where_audit_until
and a.at < :until::timestamptz
-- fragment: where_audit_same_actor
and n.actor = :actor::text
-- fragment: where_audit_same_action
and n.action = :action::text
-- fragment: where_audit_same_kind
and n.kind = :kind::text
-- fragment: where_audit_same_target
and n.target = :target::text
-- fragment: where_audit_same_since
and n.at >= :since::timestamptz
-- fragment: where_audit_same_until
and n.at < :until::timestamptz
-- fragment: where_audit_listed
and a.plan_id is null
and (a.kind <> 'plan' or not exists (
  select 1 from {hf}audit n
  where n.kind = 'plan' and n.target = a.target and n.plan_id is null and n.id > a.id {same}))

-- name: audited_plans
-- The progress of these plans; of one that was removed, what its batches did.
select p.id::text, p.action, p.state, p.total, p.done, p.results from {hf}plan p where p.id = any (:ids::uuid[])
union all
select b.target, min(b.action), null, null, sum(jsonb_array_length(b.detail -> 'deliveries'))::bigint, null
from {hf}audit b
where b.kind = 'plan' and b.target = any (:ids::text[]) and b.detail -> 'deliveries' is not null
  and not exists (select 1 from {hf}plan p where p.id = b.target::uuid)
group by b.target
