-- fragment: oldest_runs
select r.id, r.name, r.version, r.status, r.started_at from {hf}workflow_run r
where r.name = :name order by r.id limit :limit

-- fragment: run_deliveries_of
from {hf}delivery d
where d.message_id = r.id
  and d.id between substr(r.id, 1, 18) || '-8000-000000000000'
               and substr(r.id, 1, 18) || '-bfff-ffffffffffff'

-- name: blocked_steps
-- The blocked steps of a workflow: the dead letters of its steps whose run is active. A run that is compensated waits only
-- for its undo steps; the dead step is the reason for it.
select d.message_id, d.consumer, d.completed_at, d.last_error from {hf}delivery d
where d.consumer in (select value from json_each(:consumers)) and d.status = 'failed' and d.discarded_at is null
  and exists (
    select 1 from {hf}workflow_run r
    where r.id = d.message_id
      and (r.status = 'running' or (r.status = 'compensating' and d.consumer like '%:undo')))
order by d.consumer, d.id limit :limit

-- name: open_waits
-- Suspended steps of active runs that only a signal wakes, with the time since which they wait.
select w.run_id, r.name, w.name, w.signal, d.claimed_at
from {hf}workflow_step w
join {hf}workflow_run r on r.id = w.run_id and r.status in ('running', 'compensating')
join {hf}delivery d on d.id = w.delivery_id and d.status = 'pending'
where w.signal is not null and w.done_at is null and w.wake_at is null
  and d.claimed_at < {now} - :older_than
order by d.claimed_at limit :limit

-- name: postponed_runs
-- Runs of an older version among the oldest ones with a step that workers claimed and did not run.
select r.id, r.version from ({oldest_runs}) r
where r.status in ('running', 'compensating') and r.version <> :version
  and exists (
    select 1 {run_deliveries_of} and d.status = 'pending' and d.attempts = 0 and d.claimed_at is not null
      and not exists (
        select 1 from {hf}workflow_step w
        where w.run_id = r.id and w.delivery_id = d.id and w.done_at is null
          and not exists (
            select 1 from {hf}workflow_signal g
            where g.run_id = w.run_id and g.name = w.signal and g.consumed_by is null))
  )
order by r.id

-- name: idle_runs
-- Active runs among the oldest ones of which no delivery is unfinished or a dead letter.
select r.id, r.version, r.started_at from ({oldest_runs}) r
where r.status = 'running' and r.started_at < {now} - :older_than
  and not exists (
    select 1 {run_deliveries_of}
      and (d.status in ('pending', 'in_flight') or (d.status = 'failed' and d.discarded_at is null)))
order by r.id
