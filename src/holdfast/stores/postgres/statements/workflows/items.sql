-- name: store_join
-- Stores the join of a map while the claim of its step is held.
with own as materialized (
  select d.id from {hf}delivery d
  where d.id = :delivery_id::uuid and d.fence = :fence::bigint and d.locked_by = :worker::text for share)
insert into {hf}workflow_step (run_id, name, delivery_id, waiting, fence)
select :run_id::uuid, :step::text, own.id, :waiting::integer, :fence::bigint from own
on conflict (run_id, name, occurrence) do nothing
returning 1

-- name: store_items
-- Stores items of a map with their deliveries.
with s as (
  insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, item)
  select :run_id::uuid, :step::text, s.occurrence, s.delivery_id, s.item::jsonb
  from unnest(:occurrence::integer[], :delivery_id::uuid[], :item::text[]) s (occurrence, delivery_id, item)
  on conflict (run_id, name, occurrence) do nothing
  returning delivery_id)
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation)
select s.delivery_id, r.id, c.name, c.queue, c.priority, greatest(r.generation, c.generation)
from s cross join {hf}workflow_run r left join {hf}consumer c on c.name = :consumer::text
where r.id = :run_id::uuid

-- name: item_results
-- The results of the items of a map, in their order.
select t.result::text, t.version, t.occurrence from {hf}workflow_step t
where t.run_id = :run_id::uuid and t.name = :step::text order by t.occurrence

-- name: wake_parent
-- Wakes the step of a parent run that waits for a child run.
update {hf}delivery d set run_at = now()
from {hf}workflow_step w
where w.run_id = :run_id::uuid and w.name = :step::text and w.occurrence = :occurrence::integer and w.done_at is null
  and d.id = w.delivery_id and d.status = 'pending' and d.run_at > now()

-- name: parent_of
-- The wait of a parent run that a child run belongs to.
select r.parent_run, r.parent_wait, r.parent_occurrence from {hf}workflow_run r
where r.id = :run_id::uuid and r.parent_run is not null
