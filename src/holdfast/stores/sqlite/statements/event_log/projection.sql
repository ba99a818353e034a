-- fragment: unheld
l.consumer not in (select p.name from {hf}projector p where p.held_until > {now})

-- name: projectors
-- All projectors with their last rebuild and the current hold and lease.
select p.name, p.held_until > {now} as held, p.state, r.lease_until > {now} as alive, p.online,
       coalesce(p.applied, r.passed, 0) as applied, p.total, p.asked_by as by, p.reason, p.error, p.started_at, r.updated_at,
       p.ended_at
from {hf}projector p left join {hf}position r on r.kind = 'rebuild' and r.name = p.name
order by p.name

-- name: declare_projector
-- Declares a projector.
insert into {hf}projector (name) values (:name) on conflict (name) do nothing

-- name: projector_progress
-- The position of the oldest event that a projector has not run: among the oldest deliveries by id, and among the first
-- messages for which a catch-up may still create deliveries.
select min(p.position) from (
  select m.position
  from (select u.id from ({unfinished}) u order by u.id limit :limit) o
  join {hf}delivery d on d.id = o.id join {hf}message m on m.id = d.message_id
  union all
  select m.position
  from {hf}subscription s
  join {hf}consumer c on c.name = s.consumer
  join {hf}message m on m.position in (
    select l.position from {hf}message l where l.position > s.mark_position order by l.position limit :limit)
  where s.consumer = :name and s.retired_at is null and m.sub_epoch < s.since_epoch
    and (s.pattern = m.type or s.pattern = '*'
         or (substr(s.pattern, -2) = '.*'
             and substr(m.type, 1, length(s.pattern) - 1) = substr(s.pattern, 1, length(s.pattern) - 1)))
    and (c.pruned_to is null or m.id > c.pruned_to)
    and not exists (
      select 1 from {hf}delivery d
      where d.message_id = m.id and d.consumer = s.consumer
        and d.id between substr(m.id, 1, 18) || '-8000-000000000000'
                     and substr(m.id, 1, 18) || '-bfff-ffffffffffff')) p

-- name: newest_position
-- The position of the newest event.
select m.position from {hf}message m order by m.position desc limit 1

-- name: last_run
-- The last recorded run of a consumer.
select r.delivery_id, r.attempt, r.outcome, r.error_type, r.error, r.started_at, r.completed_at
from {hf}run r where r.consumer = :name order by r.completed_at desc limit 1

-- name: restart_rebuild
-- Resets the cursor of a rebuild to the beginning.
update {hf}position set cursor = :cursor, passed = 0
where kind = 'rebuild' and name = :name and fence = :fence
returning name

-- name: note_rebuild
-- Records a running rebuild and its actor.
update {hf}projector
set state = 'running', online = :online, asked_by = :actor, reason = :reason, total = :total, applied = null,
    error = null, started_at = {now}, ended_at = null
where name = :name

-- name: rebuild_checkpoint
-- Moves a rebuild's cursor in the caller's transaction, or raises and rolls it back.
insert into {hf}rebuild_checkpoint (name, fence, before, reached, lease)
values (:name, :fence, :before, :reached, :lease)

-- name: rebuild_cursor
-- The cursor of a rebuild under this fence.
select r.cursor, r.passed from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence

-- name: hold_projector
-- Prevents claims of a projector's deliveries for a duration.
update {hf}projector set held_until = {now} + :hold
where name = :name and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence)
returning name

-- name: prolong_hold
-- Renews a hold that has not expired; no row means that a worker may have claimed since.
update {hf}projector set held_until = {now} + :hold
where name = :name and held_until > {now} and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence)
returning name

-- name: release_projector
-- Ends the hold of a projector.
update {hf}projector set held_until = null
where name = :name and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence)

-- name: running_of
-- The number of a consumer's deliveries that live workers run.
select count(*) from {hf}delivery d left join {hf}worker w on w.id = d.locked_by
where d.status = 'in_flight' and d.consumer = :name
  and (d.lease_until >= {now} or coalesce(w.alive_until >= {now}, 0))

-- name: fence_expired_runs
-- Increments the fence of a consumer's runs whose lease has expired, so that a worker that was suspended cannot complete them.
update {hf}delivery set fence = fence + 1
where id in (
  select d.id from {hf}delivery d left join {hf}worker w on w.id = d.locked_by
  where d.status = 'in_flight' and d.consumer = :name
    and not (coalesce(d.lease_until >= {now}, 0) or coalesce(w.alive_until >= {now}, 0)))
returning id

-- fragment: unfinished
select d.id from {hf}delivery d where d.status = 'pending' and not d.suspect and d.consumer = :name
    union all
    select d.id from {hf}delivery d where d.status = 'pending' and d.suspect and d.consumer = :name
    union all
    select d.id from {hf}delivery d where d.status = 'in_flight' and d.consumer = :name

-- name: lock_unfinished
-- Does nothing: SQLite has one writer at a time.
select count(*) from ({unfinished})

-- name: hold_stands
-- Whether this rebuild has held the projector without interruption.
select 1 from {hf}projector p
where p.name = :name and p.held_until > {now} and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence)

-- fragment: rebuilt
m.position <= :reached

-- fragment: applied
{rebuilt} and m.id not in (select value from json_each(:skipped))

-- name: lowest_mark
-- The log position that all subscriptions of a consumer have reached.
select '0', s.mark_position from {hf}subscription s
where s.consumer = :name and s.retired_at is null
order by s.mark_position limit 1

-- name: unknown_to_rebuild
-- Messages that a rebuild applied and that have no delivery yet, because their publisher did not know the subscription.
select distinct m.id, m.generation, c.queue, c.priority, c.generation
from {hf}subscription s
join {hf}consumer c on c.name = s.consumer
join {hf}message m on m.position > s.mark_position and m.sub_epoch < s.since_epoch
where s.consumer = :name and s.retired_at is null and {rebuilt} and m.position > :mark_position
  and (s.pattern = m.type or s.pattern = '*'
       or (substr(s.pattern, -2) = '.*'
           and substr(m.type, 1, length(s.pattern) - 1) = substr(s.pattern, 1, length(s.pattern) - 1)))

-- name: dead_before_rebuild
-- Dead letters whose message a rebuild applied.
select d.id from {hf}delivery d join {hf}message m on m.id = d.message_id
where d.consumer = :name and d.status = 'failed' and d.discarded_at is null and {applied}
order by d.id

-- name: mark_rebuilt
-- Marks deliveries done whose message a rebuild applied; increments the fence, so that a current run cannot settle.
-- once
update {hf}delivery
set status = 'delivered', completed_at = {now}, fence = fence + 1, suspect = 0, expiries = 0, holds = 0,
    lease_until = null, locked_by = null
where id in (
  select d.id from ({unfinished}) u join {hf}delivery d on d.id = u.id join {hf}message m on m.id = d.message_id
  where {applied});
select changes()

-- name: end_rebuild
-- Ends a rebuild whose hold never expired; no row means that it did. The write transaction prevents claims.
update {hf}projector
set state = 'done', held_until = null, applied = :applied, ended_at = {now}
where name = :name and held_until is not null and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence)
returning name

-- name: stop_rebuild
-- Records a stopped rebuild; an online rebuild also ends its hold.
update {hf}projector
set state = 'stopped', error = :error, applied = :applied, ended_at = {now},
    held_until = case when online then null else held_until end
where name = :name and state = 'running' and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = :name and r.fence = :fence)

-- name: discarded_among
-- The given deliveries that were discarded.
select d.id from {hf}delivery d where d.id in (select value from json_each(:ids)) and d.discarded_at is not null

-- name: record_run
-- Adds the record of a run that completes in the handler's transaction.
insert or ignore into {hf}run (delivery_id, fence, attempt, outcome, worker, started_at, consumer, generation)
select d.id, d.fence, d.attempts, 'succeeded', :worker, d.claimed_at, d.consumer,
       (select w.generation from {hf}worker w where w.id = :worker)
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence
