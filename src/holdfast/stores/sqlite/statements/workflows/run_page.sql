-- fragment: run_listed
r.id, r.name, r.version, r.status, (select m.key from {hf}message m where m.id = r.id), r.reason, r.parent_run, r.deadline,
r.started_at, r.ended_at, r.forked_from, r.forked_step

-- fragment: run_blocked
r.status in ('running', 'compensating') and exists (
  select 1 from {hf}delivery d
  where d.message_id = r.id
    and d.id between substr(r.id, 1, 18) || '-8000-000000000000'
                 and substr(r.id, 1, 18) || '-bfff-ffffffffffff'
    and d.status = 'failed' and d.discarded_at is null and (r.status = 'running' or d.consumer like '%:undo'))

-- name: list_runs
-- Runs of a range, newest first, each with whether a step of it is blocked.
select {run_listed}, {run_blocked} from {hf}workflow_run r where true {where} order by r.id desc limit :limit

-- name: far_run
-- The run at the end of a range below an id.
select r.id from {hf}workflow_run r where true {where} order by r.id desc limit 1 offset :limit

-- fragment: where_run_name
and r.name = :name
-- fragment: where_run_status
and r.status = :status
-- fragment: where_run_before
and r.id < :before
-- fragment: where_run_from
and r.id >= :lowest
-- fragment: where_run_since
and r.started_at >= :since
-- fragment: where_run_until
and r.started_at < :until
-- fragment: where_run_blocked
and {run_blocked}
-- fragment: where_run_key
and r.id in (
  select m.id from {hf}message m
  where m.key = :key
    and m.key_scope in (select 'workflow.start.' || f.workflow from {hf}workflow_definition f))

-- name: declared_workflows
-- Each workflow with its stored versions, newest first.
select f.workflow, f.version from {hf}workflow_definition f order by f.workflow, f.version desc limit :limit

-- name: run_counts
-- The states of the newest runs of a workflow, read from a limited number of runs.
select r.status, count(*) from (
  select r.status from {hf}workflow_run r where r.name = :name order by r.id desc limit :limit) r
group by 1
