-- name: store_join
-- Stores the join of a map while the claim of its step is held.
insert into {hf}workflow_step (run_id, name, delivery_id, waiting, fence)
select :run_id, :step, d.id, :waiting, :fence
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker
on conflict (run_id, name, occurrence) do nothing
returning 1

-- name: store_items
-- Stores items of a map with their deliveries.
-- each: items
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, item)
values (:run_id, :step, :occurrence, :delivery_id, :item)
on conflict (run_id, name, occurrence) do nothing;
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, failure_history)
select :delivery_id, r.id, c.name, c.queue, c.priority, max(r.generation, c.generation), '[]'
from {hf}workflow_run r left join {hf}consumer c on c.name = :consumer
where r.id = :run_id
on conflict (id) do nothing

-- name: item_results
-- The results of the items of a map, in their order.
select t.result, t.version, t.occurrence from {hf}workflow_step t
where t.run_id = :run_id and t.name = :step order by t.occurrence

-- name: wake_parent
-- Wakes the step of a parent run that waits for a child run.
update {hf}delivery set run_at = {now}
where status = 'pending' and run_at > {now} and id in (
  select w.delivery_id from {hf}workflow_step w
  where w.run_id = :run_id and w.name = :step and w.occurrence = :occurrence and w.done_at is null)

-- name: parent_of
-- The wait of a parent run that a child run belongs to.
select r.parent_run, r.parent_wait, r.parent_occurrence from {hf}workflow_run r
where r.id = :run_id and r.parent_run is not null
