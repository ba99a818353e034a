-- fragment: relayed
not exists (
    select 1 from {hf}position p where p.kind = 'relay' and m.position > cast(substr(p.cursor, 3) as integer))

-- name: position
-- Whether a position exists.
select 1 from {hf}position where kind = :kind and name = :name

-- name: make_position
-- Creates a position without an owner.
insert into {hf}position (kind, name, cursor) values (:kind, :name, :cursor)
on conflict (kind, name) do nothing

-- name: take_position
-- Sets a new owner unless the lease of another is valid; increments the fence, so that the previous owner cannot write.
update {hf}position
set owner = :owner, fence = fence + 1, lease_until = {now} + :lease, detail = coalesce(:detail, detail)
where kind = :kind and name = :name and (owner is null or owner = :owner or lease_until < {now})
returning fence, cursor

-- name: move_position
-- Stores the position of the current owner; without a cursor it only renews the lease.
update {hf}position
set cursor = coalesce(:cursor, cursor), passed = passed + :passed, lease_until = {now} + :lease,
    updated_at = case when :cursor <> cursor then {now} else updated_at end
where kind = :kind and name = :name and fence = :fence and owner = :owner
returning fence

-- name: release_position
-- Ends the lease of the owner.
update {hf}position set owner = null, lease_until = null
where kind = :kind and name = :name and fence = :fence and owner = :owner

-- name: positions
-- All positions of a kind and the current time.
select kind, name, cursor, owner, fence, lease_until, passed, detail, created_at, updated_at, {now} as now
from {hf}position where kind = :kind order by name

-- name: is_paused
-- Whether an operator has paused a consumer or its queue.
select 1 from {hf}consumer c left join {hf}queue q on q.name = c.queue
where c.name = :name and (c.paused_at is not null or q.paused_at is not null)

-- name: forget_position
-- Removes a position without an owner whose relay no live worker has registered: during an outage it has no owner.
delete from {hf}position
where kind = :kind and name = :name and (owner is null or lease_until < {now})
  and not exists (
    select 1 from {hf}worker w where w.alive_until > {now} and :name in (select value from json_each(w.consumers)))
returning name
