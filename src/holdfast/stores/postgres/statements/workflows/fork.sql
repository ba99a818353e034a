-- name: fork_origin
-- The workflow, status and arguments of the run that is forked.
select r.name, r.version, r.status, m.payload::text from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.id = :run_id::uuid

-- name: finished_steps
-- The steps of a run that are done, with their results and whether they were undone. One statement, so that a retry
-- at the same time takes away all of them or none.
select t.name, t.result::text, t.version,
       exists (
         select 1 from {hf}workflow_step u
         where u.run_id = t.run_id and u.name = t.name || ':undo' and u.occurrence = 0 offset 0)
from {hf}workflow_step t
where t.run_id = :run_id::uuid and t.occurrence = 0 and t.done_at is not null
  and strpos(t.name, '/') = 0 and strpos(t.name, ':') = 0 and strpos(t.name, '@') = 0

-- name: fork_link
-- The run and the step that a run was forked from.
select r.forked_from, r.forked_step from {hf}workflow_run r where r.id = :run_id::uuid

-- name: link_fork
-- Stores which run and step a new run was forked from.
update {hf}workflow_run set forked_from = :origin::uuid, forked_step = :step::text where id = :run_id::uuid

-- name: copy_results
-- Stores results of another run as those of steps that are done.
insert into {hf}workflow_step (run_id, name, delivery_id, result, version, done_at)
select s.run_id, s.step, s.delivery_id, s.result::jsonb, s.version, now()
from unnest(:run_id::uuid[], :step::text[], :delivery_id::uuid[], :result::text[], :version::integer[])
       s (run_id, step, delivery_id, result, version)
