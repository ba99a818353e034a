-- fragment: relayed
not exists (
      select 1 from {hf}position p
      where p.kind = 'relay'
        and pg_visible_in_snapshot(m.tx, nullif(split_part(p.cursor, ';', 1), '')::pg_snapshot) is not true)

-- name: position
-- Whether a position exists.
select 1 from {hf}position where kind = :kind::text and name = :name::text

-- name: make_position
-- Creates a position without an owner.
insert into {hf}position (kind, name, cursor) values (:kind::text, :name::text, :cursor::text)
on conflict (kind, name) do nothing

-- name: take_position
-- Sets a new owner unless the lease of another is valid; increments the fence, so that the previous owner cannot write.
update {hf}position
set owner = :owner::text, fence = fence + 1, lease_until = clock_timestamp() + :lease::interval,
    detail = coalesce(:detail::text, detail)
where kind = :kind::text and name = :name::text
  and (owner is null or owner = :owner::text or lease_until < clock_timestamp())
returning fence, cursor

-- name: move_position
-- Stores the position of the current owner; without a cursor it only renews the lease.
update {hf}position
set cursor = coalesce(:cursor::text, cursor), passed = passed + :passed::bigint, lease_until = clock_timestamp() + :lease::interval,
    updated_at = case when :cursor::text <> cursor then now() else updated_at end
where kind = :kind::text and name = :name::text and fence = :fence::bigint and owner = :owner::text
returning fence

-- name: release_position
-- Ends the lease of the owner.
update {hf}position set owner = null, lease_until = null
where kind = :kind::text and name = :name::text and fence = :fence::bigint and owner = :owner::text

-- name: positions
-- All positions of a kind and the current time.
select kind, name, cursor, owner, fence, lease_until, passed, detail, created_at, updated_at, clock_timestamp() as now
from {hf}position where kind = :kind::text order by name

-- name: is_paused
-- Whether an operator has paused a consumer or its queue.
select 1 from {hf}consumer c left join {hf}queue q on q.name = c.queue
where c.name = :name::text and (c.paused_at is not null or q.paused_at is not null)

-- name: forget_position
-- Removes a position without an owner whose relay no live worker has registered: during an outage it has no owner.
delete from {hf}position
where kind = :kind::text and name = :name::text and (owner is null or lease_until < clock_timestamp())
  and not exists (
    select 1 from {hf}worker w where w.alive_until > clock_timestamp() and :name::text = any (w.consumers))
returning name
