-- name: fork_origin
-- The workflow, status and arguments of the run that is forked.
select r.name, r.version, r.status, m.payload from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.id = :run_id

-- name: finished_steps
-- The steps of a run that are done, with their results and whether they were undone.
select t.name, t.result, t.version,
       exists (
         select 1 from {hf}workflow_step u
         where u.run_id = t.run_id and u.name = t.name || ':undo' and u.occurrence = 0)
from {hf}workflow_step t
where t.run_id = :run_id and t.occurrence = 0 and t.done_at is not null
  and instr(t.name, '/') = 0 and instr(t.name, ':') = 0 and instr(t.name, '@') = 0

-- name: fork_link
-- The run and the step that a run was forked from.
select r.forked_from, r.forked_step from {hf}workflow_run r where r.id = :run_id

-- name: link_fork
-- Stores which run and step a new run was forked from.
update {hf}workflow_run set forked_from = :origin, forked_step = :step where id = :run_id

-- name: copy_results
-- Stores results of another run as those of steps that are done.
-- each: steps
insert into {hf}workflow_step (run_id, name, delivery_id, result, version, done_at)
values (:run_id, :step, :delivery_id, :result, :version, {now})
