-- fragment: unheld
l.consumer <> all (array(select p.name from {hf}projector p where p.held_until > now()))

-- name: projectors
-- Every projector with how its last rebuild stands; the hold and the lease as they are now.
select p.name, p.held_until > now(), p.state, p.online, p.asked_by, p.reason, p.total, coalesce(p.applied, r.passed),
       p.error, p.started_at, p.ended_at, r.updated_at, r.lease_until > now()
from {hf}projector p left join {hf}position r on r.kind = 'rebuild' and r.name = p.name
order by p.name

-- name: declare_projector
-- Makes a projector known.
insert into {hf}projector (name) values (:name::text) on conflict (name) do nothing

-- name: projector_progress
-- The place of the oldest event that a projector has still to run, among the oldest by their ids, and among the first
-- of which a catch-up may still make deliveries.
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
-- The place of the newest event.
select m.position from {hf}message m order by m.tx desc, m.position desc limit 1

-- name: last_run
-- The last run of a consumer that was recorded.
select r.delivery_id, r.attempt, r.outcome, r.error_type, r.error, r.started_at, r.completed_at
from {hf}run r where r.consumer = :name::text order by r.completed_at desc limit 1

-- name: restart_rebuild
-- Sets a rebuild's cursor back to the beginning.
update {hf}position set cursor = :cursor::text, passed = 0
where kind = 'rebuild' and name = :name::text and fence = :fence::bigint
returning name

-- name: note_rebuild
-- A rebuild that is under way, and who asked for it.
update {hf}projector
set state = 'running', online = :online::boolean, asked_by = :actor::text, reason = :reason::text,
    total = :total::bigint, applied = null, error = null, started_at = now(), ended_at = null
where name = :name::text

-- name: rebuild_checkpoint
-- Moves a rebuild's cursor in the caller's transaction, or raises and aborts it.
select {hf}rebuild_checkpoint(
  :name::text, :fence::bigint, :before::text, :reached::text, :lease::interval, :idle_timeout_ms::bigint)

-- name: rebuild_cursor
-- How far a rebuild has come under this fence.
select r.cursor, r.passed from {hf}position r
where r.kind = 'rebuild' and r.name = :name::text and r.fence = :fence::bigint

-- name: hold_projector
-- Keeps everybody from claiming a projector's deliveries for so long.
update {hf}projector p set held_until = clock_timestamp() + :hold::interval
where p.name = :name::text and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: prolong_hold
-- Prolongs a hold that has not lapsed; no row means that somebody may have claimed meanwhile.
update {hf}projector p set held_until = clock_timestamp() + :hold::interval
where p.name = :name::text and p.held_until > clock_timestamp() and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: release_projector
-- Lets a projector's deliveries be claimed again.
update {hf}projector p set held_until = null
where p.name = :name::text and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- name: running_of
-- How many deliveries of a consumer somebody runs who is alive.
select count(*) from {hf}delivery d left join {hf}worker w on w.id = d.locked_by
where d.status = 'in_flight' and d.consumer = :name::text
  and (d.lease_until >= clock_timestamp() or coalesce(w.alive_until >= clock_timestamp(), false))

-- fragment: unfinished
select d.id from {hf}delivery d where d.status = 'pending' and not d.suspect and d.consumer = :name::text
    union all
    select d.id from {hf}delivery d where d.status = 'pending' and d.suspect and d.consumer = :name::text
    union all
    select d.id from {hf}delivery d where d.status = 'in_flight' and d.consumer = :name::text

-- name: lock_unfinished
-- Waits for whoever claims deliveries of a consumer right now, and lets nobody else until the commit.
select count(*) from (
  select d.id from {hf}delivery d
  where d.id = any (array({unfinished}))
  order by d.id for update of d) locked

-- name: hold_stands
-- Whether a projector has been held without a gap, by this rebuild.
select 1 from {hf}projector p
where p.name = :name::text and p.held_until > clock_timestamp() and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- fragment: rebuilt
pg_visible_in_snapshot(m.tx, :done::text::pg_snapshot)

-- fragment: applied
{rebuilt} and m.id <> all (:skipped::uuid[])

-- name: lowest_mark
-- How far the subscriptions of a consumer have all seen the log of messages.
select s.mark_tx::text, s.mark_position from {hf}subscription s
where s.consumer = :name::text and s.retired_at is null
order by s.mark_tx, s.mark_position limit 1

-- name: unknown_to_rebuild
-- Messages that a rebuild applied and whose delivery is still to be made, because their publisher did not know of it.
-- The lowest mark is given as a value: of a column the planner knows nothing, and would read every message.
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
-- Done, because a rebuild applied their message; the fence rises, so that whoever was at it cannot finish.
with u as (
  update {hf}delivery d
  set status = 'delivered', completed_at = now(), fence = d.fence + 1, suspect = false, expiries = 0, holds = 0,
      lease_until = null, locked_by = null
  from {hf}message m
  where d.id = any (array({unfinished})) and d.status in ('pending', 'in_flight') and m.id = d.message_id and {applied}
  returning d.id)
select count(*) from u

-- name: end_rebuild
-- Ends a rebuild whose hold never lapsed; no row means that it did.
update {hf}projector p
set state = 'done', held_until = null, applied = :applied::bigint, ended_at = now()
where p.name = :name::text and p.held_until > clock_timestamp() + interval '1 second' and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)
returning p.name

-- name: stop_rebuild
-- A rebuild that came to nothing for now; one that builds beside the live result holds nobody up any longer.
update {hf}projector p
set state = 'stopped', error = :error::text, applied = :applied::bigint, ended_at = now(),
    held_until = case when p.online then null else p.held_until end
where p.name = :name::text and p.state = 'running' and exists (
  select 1 from {hf}position r where r.kind = 'rebuild' and r.name = p.name and r.fence = :fence::bigint)

-- name: discarded_among
-- Those of these deliveries that were set aside for good.
select d.id from {hf}delivery d where d.id = any (:ids::uuid[]) and d.discarded_at is not null

-- name: record_run
-- The record of a run that completed in its handler's own transaction, written by that transaction.
insert into {hf}run (delivery_id, fence, attempt, outcome, worker, started_at, consumer, generation)
select d.id, d.fence, d.attempts, 'succeeded', :worker::text, d.claimed_at, d.consumer,
       (select w.generation from {hf}worker w where w.id = :worker::text)
from {hf}delivery d where d.id = :delivery_id::uuid and d.fence = :fence::bigint
on conflict do nothing
