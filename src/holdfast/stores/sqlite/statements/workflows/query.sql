-- fragment: run_record
r.id, r.name, r.version, r.status, m.key, r.reason, r.parent_run, r.deadline, r.started_at, r.ended_at,
r.forked_from, r.forked_step

-- name: workflow_run
-- One run with the values of its start.
select {run_record}, m.payload from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.id = :run_id

-- name: child_runs
-- The child runs of a run, newest first.
select {run_record} from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.parent_run = :run_id order by r.id desc limit :limit

-- name: forked_runs
-- The forks of a run, newest first.
select {run_record} from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.forked_from = :run_id order by r.id desc limit :limit

-- name: workflow_run_steps
-- The rows of a run without the items of its maps: results, joins, memos and waits.
select t.name, t.occurrence, t.delivery_id, t.waiting, t.signal, t.wake_at, t.outcome, t.result, t.done_at,
       t.version
from {hf}workflow_step t where t.run_id = :run_id and t.item is null
order by t.name, t.occurrence limit :limit

-- name: workflow_run_deliveries
-- The deliveries of a run's steps without those of `others`, the command consumer and the mapped steps.
select {step_delivery}
from {hf}delivery d
where d.message_id = :run_id and d.id between :low and :high and d.consumer not in (select value from json_each(:others))
order by d.created_at, d.id limit :limit

-- name: workflow_run_items
-- Items of a run's maps with their deliveries, those that failed or are not done first.
select t.name, t.occurrence, t.result, t.version, {step_delivery}
from {hf}workflow_step t join {hf}delivery d on d.id = t.delivery_id
where t.run_id = :run_id and t.item is not null
order by t.done_at is not null, d.status <> 'failed', t.name, t.occurrence limit :limit

-- name: workflow_run_item_counts
-- The number of items of each map by the facts that their state depends on, of a limited number of items.
select t.name, d.status, d.run_at <= {now}, min(d.attempts, 2), d.discarded_at is not null,
       coalesce(d.failure_history, '[]') <> '[]', count(*)
from (select t.name, t.delivery_id from {hf}workflow_step t
      where t.run_id = :run_id and t.item is not null order by t.name, t.occurrence limit :limit) t
join {hf}delivery d on d.id = t.delivery_id
group by 1, 2, 3, 4, 5, 6

-- fragment: step_delivery
d.id, d.consumer, d.status, d.run_at <= {now}, d.run_at, d.attempts, d.claimed_at, d.completed_at, d.discarded_at,
d.last_error, coalesce(d.failure_history, '[]') <> '[]'

-- name: workflow_run_signals
-- The signals that were sent to a run.
select g.id, g.name, g.payload, g.consumed_by, g.sent_at from {hf}workflow_signal g
where g.run_id = :run_id order by g.id limit :limit
