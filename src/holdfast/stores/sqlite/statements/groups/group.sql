-- name: store_group
-- Stores a group; returns nothing if a group has the same key.
insert into {hf}job_group (id, label, key) values (:id, :label, :key)
on conflict (key) do nothing returning id

-- name: find_group
-- The group with a key.
select g.id from {hf}job_group g where g.key = :key

-- name: store_members
-- Stores jobs of a group.
-- each: members
insert into {hf}job_group_member (group_id, stage, position, delivery_id, message_id, consumer, input, on_failure)
values (:group, :stage, :position, :delivery_id, :message_id, :consumer, :input, :on_failure)

-- name: cancel_members
-- Cancels the unfinished jobs of a group; increments the fence, so that a current run cannot settle.
update {hf}delivery
set status = 'failed', completed_at = {now}, discarded_at = {now}, fence = fence + 1, last_error = :reason,
    lease_until = null, locked_by = null,
    failed_type = (select t.type from {hf}message t where t.id = message_id)
where status in ('pending', 'in_flight')
  and id in (select m.delivery_id from {hf}job_group_member m where m.group_id = :group)
returning id

-- name: mark_cancelled_group
-- Records that an operator cancelled a group.
update {hf}job_group set cancelled_at = coalesce(cancelled_at, {now}) where id = :group returning id

-- name: prune_groups
-- Removes old groups without deliveries, and their rows of jobs.
-- once
delete from {hf}job_group
where id in (
  select g.id from {hf}job_group g
  where g.id > :cursor and g.created_at < {now} - :older_than
    and not exists (
      select 1 from {hf}job_group_member m join {hf}delivery d on d.id = m.delivery_id where m.group_id = g.id)
  order by g.id limit :limit)
returning id;
-- each: returned
delete from {hf}job_group_member where group_id = :id
