-- fragment: unheld
l.consumer <> all (array(select p.name from {hf}projector p where p.held_until > now()))

-- name: projectors
-- All projectors with their last rebuild and the current hold and lease.
select p.name, p.held_until > now() as held, p.state, r.lease_until > now() as alive, p.online,
       coalesce(p.applied, r.passed, 0) as applied, p.total, p.asked_by as by, p.reason, p.error, p.started_at, r.updated_at,
       p.ended_at
from {hf}projector p left join {hf}position r on r.kind = 'rebuild' and r.name = p.name
order by p.name

-- name: declare_projector
-- Declares a projector.
insert into {hf}projector (name) values (:name::text) on conflict (name) do nothing

-- name: projector_progress
-- The position of the oldest event that a projector has not run: among the oldest deliveries by id, and among the first
-- messages for which a catch-up may still create deliveries.
select min(p.position) from (
  select m.position
  from (select u.id from ({unfinished}) u order by u.id limit {limit}) o
  join {hf}delivery d on d.id = o.id join {hf}message m on m.id = d.message_id
  union all
  select m.position
  from {hf}subscription s
  join {hf}consumer c on c.name = s.consumer
  cross join lateral (
    select l.id, l.type, l.tx, l.position, l.sub_epoch from {hf}message l
    where (l.tx, l.position) > (s.mark_tx, s.mark_position) order by l.tx, l.position limit {limit}) m
  where s.consumer = :name::text and s.retired_at is null and m.sub_epoch < s.since_epoch
    and (s.pattern = m.type or s.pattern = '*'
         or (s.pattern like '%.*' and starts_with(m.type, left(s.pattern, -1))))
    and (s.from_start or not pg_visible_in_snapshot(m.tx, s.activated))
    and (c.pruned_to is null or m.id > c.pruned_to or not pg_visible_in_snapshot(m.tx, s.resumed))
    and not exists (
      select 1 from {hf}delivery d
      where d.message_id = m.id and d.consumer = s.consumer
        and d.id between (left(m.id::text, 18) || '-8000-000000000000')::uuid
                     and (left(m.id::text, 18) || '-bfff-ffffffffffff')::uuid
      offset 0)) p

-- name: newest_position
-- The position of the newest event.
select m.position from {hf}message m order by m.tx desc, m.position desc limit 1

-- name: last_run
-- The last recorded run of a consumer.
select r.delivery_id, r.attempt, r.outcome, r.error_type, r.error, r.started_at, r.completed_at
from {hf}run r where r.consumer = :name::text order by r.completed_at desc limit 1

-- name: restart_rebuild
-- Resets the cursor of a rebuild to the beginning.
update {hf}position set cursor = :cursor::text, passed = 0
where kind = 'rebuild' and name = :name::text and fence = :fence::bigint
returning name

-- name: note_rebuild
-- Records a running rebuild and its actor.
update {hf}projector
set state = 'running', online = :online::boolean, asked_by = :actor::text, reason = :reason::text,
    total = :total::bigint, applied = null, error = null, started_at = now(), ended_at = null
where name = :name::text

-- name: rebuild_checkpoint
-- Moves a rebuild's cursor in the caller's transaction, or raises and aborts it.
select {hf}rebuild_checkpoint(
  :name::text, :fence::bigint, :before::text, :reached::text, :lease::interval, :idle_timeout_ms::bigint)

-- name: rebuild_cursor
-- The cursor of a rebuild under this fence.
select r.cursor, r.passed from {hf}position r
where r.kind = 'rebuild' and r.name = :name::text and r.fence = :fence::bigint

-- name: hold_projector
-- Prevents claims of a projector's deliveries for a duration.
update {hf}projector p set held_until = clock_timestamp() + :hold::interval
where p.name = :name::text and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: prolong_hold
-- Renews a hold that has not expired; no row means that a worker may have claimed since.
update {hf}projector p set held_until = clock_timestamp() + :hold::interval
where p.name = :name::text and p.held_until > clock_timestamp() and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: release_projector
-- Ends the hold of a projector.
update {hf}projector p set held_until = null
where p.name = :name::text and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- name: running_of
-- The number of a consumer's deliveries that live workers run.
select count(*) from {hf}delivery d left join {hf}worker w on w.id = d.locked_by
where d.status = 'in_flight' and d.consumer = :name::text
  and (d.lease_until >= clock_timestamp() or coalesce(w.alive_until >= clock_timestamp(), false))

-- name: fence_expired_runs
-- Increments the fence of a consumer's runs whose lease has expired, so that a worker that was suspended cannot complete them.
-- A run that another worker took over while this statement waited for a lock has a higher fence, and stays unchanged.
with c as materialized (
  select d.id, d.fence from {hf}delivery d left join {hf}worker w on w.id = d.locked_by
  where d.status = 'in_flight' and d.consumer = :name::text
    and not (coalesce(d.lease_until >= clock_timestamp(), false) or coalesce(w.alive_until >= clock_timestamp(), false)))
update {hf}delivery d set fence = d.fence + 1
from c where d.id = c.id and d.fence = c.fence
returning d.id

-- fragment: unfinished
select d.id from {hf}delivery d where d.status = 'pending' and not d.suspect and d.consumer = :name::text
    union all
    select d.id from {hf}delivery d where d.status = 'pending' and d.suspect and d.consumer = :name::text
    union all
    select d.id from {hf}delivery d where d.status = 'in_flight' and d.consumer = :name::text

-- name: lock_unfinished
-- Waits for current claims of a consumer's deliveries and prevents other claims until the commit.
select count(*) from (
  select d.id from {hf}delivery d
  where d.id = any (array({unfinished}))
  order by d.id for update of d) locked

-- name: hold_stands
-- Whether this rebuild has held the projector without interruption.
select 1 from {hf}projector p
where p.name = :name::text and p.held_until > clock_timestamp() and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- fragment: rebuilt
pg_visible_in_snapshot(m.tx, :done::text::pg_snapshot)

-- fragment: applied
{rebuilt} and m.id <> all (:skipped::uuid[])

-- name: lowest_mark
-- The log position that all subscriptions of a consumer have reached.
select s.mark_tx::text, s.mark_position from {hf}subscription s
where s.consumer = :name::text and s.retired_at is null
order by s.mark_tx, s.mark_position limit 1

-- name: unknown_to_rebuild
-- Messages that a rebuild applied and that have no delivery yet, because their publisher did not know the subscription.
-- The lowest mark is a parameter: without statistics for a column the planner would read every message.
select distinct m.id, m.generation, c.queue, c.priority, c.generation
from {hf}subscription s
join {hf}consumer c on c.name = s.consumer
join {hf}message m on (m.tx, m.position) > (s.mark_tx, s.mark_position) and m.sub_epoch < s.since_epoch
where s.consumer = :name::text and s.retired_at is null and {rebuilt}
  and (m.tx, m.position) > (:mark_tx::text::xid8, :mark_position::bigint)
  and (s.pattern = m.type or s.pattern = '*'
       or (s.pattern like '%.*' and starts_with(m.type, left(s.pattern, -1))))

-- name: dead_before_rebuild
-- Dead letters whose message a rebuild applied.
select d.id from {hf}delivery d join {hf}message m on m.id = d.message_id
where d.consumer = :name::text and d.status = 'failed' and d.discarded_at is null and {applied}
order by d.id

-- name: mark_rebuilt
-- Marks deliveries done whose message a rebuild applied; increments the fence, so that a current run cannot settle.
with u as (
  update {hf}delivery d
  set status = 'delivered', completed_at = now(), fence = d.fence + 1, suspect = false, expiries = 0, holds = 0,
      lease_until = null, locked_by = null
  from {hf}message m
  where d.id = any (array({unfinished})) and d.status in ('pending', 'in_flight') and m.id = d.message_id and {applied}
  returning d.id)
select count(*) from u

-- name: end_rebuild
-- Ends a rebuild whose hold never expired; no row means that it did.
update {hf}projector p
set state = 'done', held_until = null, applied = :applied::bigint, ended_at = now()
where p.name = :name::text and p.held_until > clock_timestamp() + interval '1 second' and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: stop_rebuild
-- Records a stopped rebuild; an online rebuild also ends its hold.
update {hf}projector p
set state = 'stopped', error = :error::text, applied = :applied::bigint, ended_at = now(),
    held_until = case when p.online then null else p.held_until end
where p.name = :name::text and p.state = 'running' and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- name: discarded_among
-- The given deliveries that were discarded.
select d.id from {hf}delivery d where d.id = any (:ids::uuid[]) and d.discarded_at is not null

-- name: record_run
-- Adds the record of a run that completes in the handler's transaction.
insert into {hf}run (delivery_id, fence, attempt, outcome, worker, started_at, consumer, generation)
select d.id, d.fence, d.attempts, 'succeeded', :worker::text, d.claimed_at, d.consumer,
       (select w.generation from {hf}worker w where w.id = :worker::text)
from {hf}delivery d where d.id = :delivery_id::uuid and d.fence = :fence::bigint
on conflict do nothing
