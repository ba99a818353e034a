-- name: store_group
-- Stores a group; returns nothing if a group has the same key.
insert into {hf}job_group (id, label, key) values (:id::uuid, :label::text, :key::text)
on conflict (key) do nothing returning id

-- name: find_group
-- The group with a key.
select g.id from {hf}job_group g where g.key = :key::text

-- name: store_members
-- Stores jobs of a group.
insert into {hf}job_group_member (group_id, stage, position, delivery_id, message_id, consumer, input, on_failure)
select :group::uuid, s.stage, s.position, s.delivery_id, s.message_id, s.consumer, s.input, s.on_failure
from unnest(:stage::integer[], :position::integer[], :delivery_id::uuid[], :message_id::uuid[], :consumer::text[],
            :input::text[], :on_failure::text[]) s (stage, position, delivery_id, message_id, consumer, input, on_failure)

-- name: cancel_members
-- Cancels the unfinished jobs of a group; increments the fence, so that a current run cannot settle.
update {hf}delivery d
set status = 'failed', completed_at = now(), discarded_at = now(), fence = d.fence + 1, last_error = :reason::text,
    lease_until = null, locked_by = null,
    failed_type = (select t.type from {hf}message t where t.id = d.message_id)
from {hf}job_group_member m
where m.group_id = :group::uuid and d.id = m.delivery_id and d.status in ('pending', 'in_flight')
returning d.id

-- name: mark_cancelled_group
-- Records that an operator cancelled a group.
update {hf}job_group set cancelled_at = coalesce(cancelled_at, now()) where id = :group::uuid returning id

-- name: prune_groups
-- Removes old groups without deliveries, and their rows of jobs.
with old as materialized (
  select g.id from {hf}job_group g
  where g.id > :cursor::uuid and g.created_at < now() - :older_than::interval
    and not exists (
      select 1 from {hf}job_group_member m
      cross join lateral (select 1 from {hf}delivery d where d.id = m.delivery_id offset 0) d
      where m.group_id = g.id offset 0)
  order by g.id limit {limit}),
m as (delete from {hf}job_group_member m using old where m.group_id = old.id)
delete from {hf}job_group g using old where g.id = old.id
returning g.id
