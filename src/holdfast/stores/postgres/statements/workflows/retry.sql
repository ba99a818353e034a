-- name: failed_steps
-- The steps of a run that failed or were discarded, with whether they were discarded.
select d.consumer, d.discarded_at is not null from {hf}delivery d
where d.message_id = :run_id::uuid and d.id between :low::uuid and :high::uuid and d.status = 'failed'

-- name: reset_steps
-- Removes the results of steps that run again, and discards their deliveries with a new fence. If a step was done, its
-- memos, waits and items are removed too, and its children no longer belong to its waits, so that it starts new ones. If
-- it was not done, its next delivery uses them, and items that failed run again. The deadline of each step starts again.
with s as materialized (
  select s.* from unnest(:run_id::uuid[], :step::text[], :delivery_id::uuid[], :was_done::boolean[], :consumer::text[],
                         :undo_consumer::text[]) s (run_id, step, delivery_id, was_done, consumer, undo_consumer)),
gone as (
  delete from {hf}workflow_step t using s
  where t.run_id = s.run_id
    and (t.name in (s.step, s.step || ':undo', s.step || '/deadline:step', 'compensation:undo')
         or (s.was_done and ((t.name >= s.step || '/' and t.name < s.step || '0') or strpos(t.name, '@' || s.step || '#') > 0)))),
moved as (
  update {hf}workflow_step t set delivery_id = s.delivery_id from s
  where t.run_id = s.run_id and not s.was_done and t.name >= s.step || '/' and t.name < s.step || '0'
    and t.name <> s.step || '/deadline:step'),
children as (
  update {hf}workflow_run r set parent_wait = '@' || r.parent_wait from s
  where r.parent_run = s.run_id and s.was_done and strpos(r.parent_wait, s.step || '/') = 1),
items as (
  update {hf}delivery d
  set status = 'pending', run_at = now(), attempts = 0, fence = d.fence + 1, completed_at = null, discarded_at = null
  from s join {hf}workflow_step t
    on t.run_id = s.run_id and not s.was_done and t.item is not null and t.done_at is null
       and strpos(t.name, '@' || s.step || '#') > 0
  where d.id = t.delivery_id and d.status = 'failed')
update {hf}delivery d
set status = 'failed', completed_at = coalesce(d.completed_at, now()), discarded_at = coalesce(d.discarded_at, now()),
    fence = d.fence + 1, lease_until = null, locked_by = null
from s
where d.message_id = :run::uuid and d.id between :low::uuid and :high::uuid and d.consumer in (s.consumer, s.undo_consumer)
  and d.status in ('pending', 'in_flight', 'failed')

-- name: store_counters
-- Stores what joins still wait for.
insert into {hf}workflow_step (run_id, name, delivery_id, waiting, arrived)
select s.run_id, s.step, s.delivery_id, s.waiting, s.arrived
from unnest(:run_id::uuid[], :step::text[], :delivery_id::uuid[], :waiting::integer[], :arrived::integer[])
       s (run_id, step, delivery_id, waiting, arrived)

-- name: restart_run
-- Makes a run active again, with new deliveries for the steps that run again. A deadline that has passed would end the run at
-- once, so it is removed.
update {hf}workflow_run
set status = 'running', epoch = epoch + 1, waiting = :waiting::integer, signals = signals + 1, ended_at = null, reason = null,
    deadline = case when deadline > now() then deadline end
where id = :run_id::uuid
