-- name: replay
-- Sets failed deliveries back to pending, with history and audit; returns the replayed ones.
-- once
select c.id, c.cycle from (
select d.id, d.unique_key, row_number() over (partition by d.consumer, d.unique_key order by d.id) as nth, json_object(
    'attempts', d.attempts, 'last_error', d.last_error, 'error_type', d.error_type, 'fingerprint', d.fingerprint,
    'first_failed_at', strftime('%Y-%m-%dT%H:%M:%fZ', d.first_failed_at / 1000.0, 'unixepoch'),
    'failed_at', strftime('%Y-%m-%dT%H:%M:%fZ', d.completed_at / 1000.0, 'unixepoch'),
    'generation', d.generation, 'replayed_at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
    'replayed_by', :actor, 'reason', :reason) as cycle
from {hf}delivery d
where d.id in (select value from json_each(:ids))
  and ((d.status = 'failed' and d.discarded_at is null) or (:rerun and d.status = 'delivered'))
  and not exists (
    select 1 from {hf}delivery o
    where o.consumer = d.consumer and o.unique_key = d.unique_key and o.status in ('pending', 'in_flight'))
) c
where c.unique_key is null or c.nth = 1
order by c.id;
-- each: returned
insert into {hf}audit (actor, action, kind, target, reason, detail, request_id, plan_id)
values (:actor, 'replay', 'delivery', :id, :reason, :cycle, :request_id, :plan);
update {hf}delivery
set status = 'pending', run_at = {now}, attempts = 0, fence = fence + 1,
    generation = coalesce(:generation, (
      select max(w.generation) from {hf}worker w
      where w.alive_until > {now} and consumer in (select value from json_each(w.consumers))
        and (w.queues = '[]' or queue in (select value from json_each(w.queues)))), generation),
    last_error = null, error_type = null, fingerprint = null, first_failed_at = null,
    completed_at = null, claimed_at = null, suspect = 0, holds = 0, expiries = 0,
    failure_history = (
      select json_group_array(json(newest.entry)) from (
        select kept.entry from (
          select h.value as entry, h.key as n
          from json_each(json_insert(coalesce(failure_history, '[]'), '$[#]', json(:cycle))) h
          order by h.key desc limit 20) kept
        order by kept.n) newest)
where id = :id
returning id, consumer, generation, fence

-- name: live_generation
-- The generation that a replay would give this consumer's deliveries in this queue.
select max(w.generation) from {hf}worker w
where w.alive_until > {now} and :consumer in (select value from json_each(w.consumers))
  and (w.queues = '[]' or :queue in (select value from json_each(w.queues)))

-- name: discard
-- Discards dead letters permanently, audited; they stay queryable.
-- once
update {hf}delivery set discarded_at = {now}, fence = fence + 1
where id in (select value from json_each(:ids)) and status = 'failed' and discarded_at is null
returning id;
-- each: returned
insert into {hf}audit (actor, action, kind, target, reason, request_id, plan_id)
values (:actor, 'discard', 'delivery', :id, :reason, :request_id, :plan)

-- name: cancel
-- Cancels unfinished deliveries; increments the fence, so that a current run cannot settle, and informs its worker.
-- once
insert or ignore into {hf}cancellation (worker, delivery_id, fence)
select d.locked_by, d.id, d.fence from {hf}delivery d
where d.id in (select value from json_each(:ids)) and d.locked_by is not null;
update {hf}delivery
set status = 'failed', completed_at = {now}, discarded_at = {now}, fence = fence + 1,
    last_error = coalesce(:reason, 'cancelled'), lease_until = null, locked_by = null,
    failed_type = (select m.type from {hf}message m where m.id = message_id)
where id in (select value from json_each(:ids)) and status in ('pending', 'in_flight')
returning id;
-- each: returned
insert into {hf}audit (actor, action, kind, target, reason, request_id, plan_id)
values (:actor, 'cancel', 'delivery', :id, :reason, :request_id, :plan)

-- name: pause_queue
-- Excludes a queue's lanes from claims until it is resumed.
insert into {hf}queue (name, paused_at) values (:name, {now})
on conflict (name) do update set paused_at = coalesce(paused_at, {now})
returning name

-- name: resume_queue
-- Includes a queue's lanes in claims again.
update {hf}queue set paused_at = null where name = :name and paused_at is not null returning name

-- name: pause_consumer
-- Excludes a consumer's lanes from claims until it is resumed.
update {hf}consumer set paused_at = coalesce(paused_at, {now}) where name = :name returning name

-- name: resume_consumer
-- Includes a consumer's lanes in claims again.
update {hf}consumer set paused_at = null where name = :name and paused_at is not null returning name

-- name: lock_consumer
-- Locks a consumer and returns whether it is blocked.
select c.blocked_until is not null from {hf}consumer c where c.name = :name

-- name: block_consumer
-- Blocks a consumer for half of the duration of its outage so far, within the two bounds.
update {hf}consumer
set blocked_at = coalesce(blocked_at, {now}), blocked_resource = :resource,
    blocked_until = {now} + min(:longest, max(:shortest, coalesce(({now} - blocked_at) / 2, 0)))
where name = :name
returning blocked_until, {now}

-- name: unblock_consumer
-- Unblocks a consumer.
update {hf}consumer set blocked_until = null, blocked_resource = null, blocked_at = null
where name = :name and blocked_until is not null returning name

-- name: write_audit
-- Records who did what to which item, and why.
insert into {hf}audit (actor, action, kind, target, reason, detail, request_id)
values (:actor, :action, :kind, :target, :reason, :detail, :request_id)

-- name: audit
-- The newest audit entries below a cursor.
select a.id, a.at, a.actor, a.action, a.kind, a.target, a.reason, a.detail, a.request_id, a.plan_id
from {hf}audit a where a.id < :before {where}
order by a.id desc limit :limit

-- fragment: where_target
and a.kind = :kind and a.target = :target
-- fragment: where_audit_actor
and a.actor = :actor
-- fragment: where_audit_action
and a.action = :action
-- fragment: where_audit_kind
and a.kind = :kind
-- fragment: where_audit_target
and a.target = :target
-- fragment: where_audit_since
and a.at >= :since
-- fragment: where_audit_until
and a.at < :until
-- fragment: where_audit_same_actor
and n.actor = :actor
-- fragment: where_audit_same_action
and n.action = :action
-- fragment: where_audit_same_kind
and n.kind = :kind
-- fragment: where_audit_same_target
and n.target = :target
-- fragment: where_audit_same_since
and n.at >= :since
-- fragment: where_audit_same_until
and n.at < :until
-- fragment: where_audit_listed
and a.plan_id is null
and (a.kind <> 'plan' or not exists (
  select 1 from {hf}audit n
  where n.kind = 'plan' and n.target = a.target and n.plan_id is null and n.id > a.id {same}))

-- name: audited_plans
-- The progress of these plans; of one that was removed, what its batches did.
select p.id, p.action, p.state, p.total, p.done, p.results from {hf}plan p
where p.id in (select value from json_each(:ids))
union all
select b.target, min(b.action), null, null, sum(json_array_length(b.detail, '$.deliveries')), null
from {hf}audit b
where b.kind = 'plan' and b.target in (select value from json_each(:ids))
  and json_extract(b.detail, '$.deliveries') is not null
  and not exists (select 1 from {hf}plan p where p.id = b.target)
group by b.target
