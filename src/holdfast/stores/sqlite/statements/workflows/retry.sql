-- name: failed_steps
-- The steps of a run that failed or were discarded, with whether they were discarded.
select d.consumer, d.discarded_at is not null from {hf}delivery d
where d.message_id = :run_id and d.id between :low and :high and d.status = 'failed'

-- name: reset_steps
-- Removes the results of steps that run again, and discards their deliveries with a new fence. If a step was done, its
-- memos, waits and items are removed too, and its children no longer belong to its waits, so that it starts new ones. If
-- it was not done, its next delivery uses them, and items that failed run again. The deadline of each step starts again.
-- each: steps
delete from {hf}workflow_step
where run_id = :run_id
  and (name in (:step, :step || ':undo', :step || '/deadline:step', 'compensation:undo')
       or (:was_done and ((name >= :step || '/' and name < :step || '0') or instr(name, '@' || :step || '#') > 0)));
update {hf}workflow_step set delivery_id = :delivery_id
where run_id = :run_id and not :was_done and name >= :step || '/' and name < :step || '0';
update {hf}workflow_run set parent_wait = '@' || parent_wait
where parent_run = :run_id and :was_done and instr(parent_wait, :step || '/') = 1;
update {hf}delivery
set status = 'pending', run_at = {now}, attempts = 0, fence = fence + 1, completed_at = null, discarded_at = null
where status = 'failed' and not :was_done and id in (
  select t.delivery_id from {hf}workflow_step t
  where t.run_id = :run_id and t.item is not null and t.done_at is null and instr(t.name, '@' || :step || '#') > 0);
update {hf}delivery
set status = 'failed', completed_at = coalesce(completed_at, {now}), discarded_at = coalesce(discarded_at, {now}),
    fence = fence + 1, lease_until = null, locked_by = null
where message_id = :run and id between :low and :high and consumer in (:consumer, :undo_consumer)
  and status in ('pending', 'in_flight', 'failed')

-- name: store_counters
-- Stores what joins still wait for.
-- each: steps
insert into {hf}workflow_step (run_id, name, delivery_id, waiting, arrived)
values (:run_id, :step, :delivery_id, :waiting, :arrived)

-- name: restart_run
-- Makes a run active again, with new deliveries for the steps that run again. A deadline that has passed would end the run at
-- once, so it is removed.
update {hf}workflow_run
set status = 'running', epoch = epoch + 1, waiting = :waiting, signals = signals + 1, ended_at = null, reason = null,
    deadline = case when deadline > {now} then deadline end
where id = :run_id
