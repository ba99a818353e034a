-- name: start_runs
-- Stores the start message, the run and the deliveries of its first steps, unless its key exists; returns the new runs.
-- all: messages
insert into {hf}message (id, type, source, payload, headers, generation, occurred_at, sub_epoch, key, key_scope)
select json_extract(m.value, '$[0]'), json_extract(m.value, '$[1]'), json_extract(m.value, '$[2]'),
       json_extract(m.value, '$[3]'), json_extract(m.value, '$[4]'), json_extract(m.value, '$[5]'),
       coalesce(json_extract(m.value, '$[6]'), {now}), json_extract(m.value, '$[7]'), json_extract(m.value, '$[8]'),
       json_extract(m.value, '$[9]')
from json_each(:rows) m where true
on conflict do nothing
returning id;
-- all: runs
insert into {hf}workflow_run
  (id, name, version, waiting, generation, parent_run, parent_wait, parent_occurrence, deadline)
select json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'),
       json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]'),
       json_extract(r.value, '$[6]'), json_extract(r.value, '$[7]'), {now} + json_extract(r.value, '$[8]')
from json_each(:rows) r
where exists (select 1 from {hf}message m where m.id = json_extract(r.value, '$[0]'));
-- all: deliveries
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry,
  failure_history)
select json_extract(d.value, '$[0]'), json_extract(d.value, '$[1]'), json_extract(d.value, '$[2]'),
       json_extract(d.value, '$[3]'), json_extract(d.value, '$[4]'), json_extract(d.value, '$[5]'),
       json_extract(d.value, '$[6]'), coalesce(json_extract(d.value, '$[8]'), {now} + json_extract(d.value, '$[7]'), {now}),
       json_extract(d.value, '$[9]'), '[]'
from json_each(:rows) d
where exists (select 1 from {hf}message m where m.id = json_extract(d.value, '$[1]'))

-- name: load_steps
-- The run of each claimed step, the results that it takes, and one row for each value that it remembers. A mapped step has
-- its item instead: it remembers nothing.
-- all: steps
with w as materialized (
  select json_extract(value, '$[0]') as run_id, json_extract(value, '$[1]') as step, json_extract(value, '$[2]') as results,
         json_extract(value, '$[3]') as delivery_id, json_extract(value, '$[4]') as mapped, json_extract(value, '$[5]') as n
  from json_each(:rows))
select w.n, r.name, r.version, r.status, r.signals, r.epoch, null, null, null, null, null, null, null, null
from w cross join {hf}workflow_run r on r.id = w.run_id
union all
select w.n, null, null, null, null, null, t.name, t.occurrence, t.result, t.outcome, t.done_at is not null, t.item, t.next,
       t.version
from w cross join json_each(w.results) x
cross join {hf}workflow_step t on t.run_id = w.run_id and t.name = x.value and t.occurrence = 0
union all
select w.n, null, null, null, null, null, t.name, t.occurrence, t.result, t.outcome, t.done_at is not null, t.item, t.next,
       t.version
from w cross join {hf}workflow_step t on t.delivery_id = w.delivery_id and t.item is not null
where w.mapped
union all
select w.n, null, null, null, null, null, t.name, t.occurrence, t.result, t.outcome, t.done_at is not null, t.item, t.next,
       t.version
from w cross join {hf}workflow_step t on t.run_id = w.run_id and t.name >= w.step || '/' and t.name < w.step || '0'
where not w.mapped

-- name: run_states
-- The status of these runs.
select r.id, r.status from {hf}workflow_run r where r.id in (select value from json_each(:ids))

-- name: lock_run
-- Locks a run for a decision; later statements of the transaction see what others committed before.
select r.name, r.version, r.status, r.epoch, r.parent_run, m.source, m.generation
from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.id = :run_id

-- name: end_run
-- Ends a run, or begins its compensation.
update {hf}workflow_run
set status = :status, reason = coalesce(:reason, reason), ended_at = case when :status <> 'compensating' then {now} end
where id = :run_id and status in ('running', 'compensating')
returning parent_run, reason

-- name: discard_steps
-- Discards the unfinished deliveries of a run with a new fence. A locked one is discarded when its run is read or settled.
update {hf}delivery
set status = 'failed', completed_at = {now}, discarded_at = {now}, fence = fence + 1,
    last_error = :reason, lease_until = null, locked_by = null
where message_id = :run_id and id between :low and :high and status in ('pending', 'in_flight')
  and (status = 'pending' or :running) and consumer <> :commands
returning id

-- name: run_result
-- The state of a run and the result of each last step.
select r.name, r.version, r.status, r.reason, t.name, t.result, t.version
from {hf}workflow_run r
left join {hf}workflow_step t on t.run_id = r.id and t.occurrence = 0 and t.done_at is not null
  and instr(t.name, '/') = 0 and instr(t.name, ':') = 0 and instr(t.name, '@') = 0
where r.id = :run_id

-- name: prune_runs
-- Removes ended runs of a batch whose parent has ended and of which no delivery is unfinished or a dead letter.
-- once
delete from {hf}workflow_run as r
where r.id in (
  select r.id from {hf}workflow_run r
  where r.id >= :cursor and r.id < :ceiling and r.status in ('done', 'cancelled', 'failed')
    and r.ended_at < {now} - :older_than
    and not exists (
      select 1 from {hf}workflow_run p where p.id = r.parent_run and p.status in ('running', 'compensating'))
    and not exists (
      select 1 from {hf}delivery d
      where d.message_id = r.id and d.id between substr(r.id, 1, 18) || '-8000-000000000000'
                                            and substr(r.id, 1, 18) || '-bfff-ffffffffffff'
        and (d.status in ('pending', 'in_flight') or (d.status = 'failed' and d.discarded_at is null)))
  order by r.id limit :limit)
returning id;
-- each: returned
delete from {hf}workflow_step where run_id = :id;
delete from {hf}workflow_signal where run_id = :id;
select :id

-- name: run_deliveries
-- The deliveries of a run: consumer, status, and whether it was ever claimed.
select d.consumer, d.status, d.claimed_at is not null from {hf}delivery d
where d.message_id = :run_id and d.id between :low and :high and d.consumer <> :commands

-- name: active_children
-- The child runs of a run that have not ended.
select r.id from {hf}workflow_run r where r.parent_run = :run_id and r.status in ('running', 'compensating')

-- name: child_of
-- The newest child run that a step waits for, unless it failed or was cancelled.
select r.id from {hf}workflow_run r
where r.parent_run = :run_id and r.parent_wait = :wait and r.parent_occurrence = :occurrence
  and r.status in ('running', 'compensating', 'done')
order by r.id desc limit 1

-- name: expired_runs
-- Active runs whose deadline has passed.
select r.id from {hf}workflow_run r
where r.deadline is not null and r.ended_at is null and r.deadline <= {now} and r.status = 'running'
order by r.deadline limit 100

-- name: compensating_runs
-- Runs that are compensated and of which nothing is unfinished: a worker may have died before it began the undo steps.
select r.id from {hf}workflow_run r
where r.status = 'compensating'
  and not exists (
    select 1 from {hf}delivery d
    where d.message_id = r.id and d.id between substr(r.id, 1, 18) || '-8000-000000000000'
                                          and substr(r.id, 1, 18) || '-bfff-ffffffffffff'
      and d.status in ('pending', 'in_flight'))
  and not exists (
    select 1 from {hf}workflow_step t where t.run_id = r.id and t.name = 'compensation:undo' and t.occurrence = 0)
order by r.id limit 100

-- name: plan_undo
-- Stores the undo steps of a run with what follows each; the last of them ends the run.
-- each: steps
insert into {hf}workflow_step (run_id, name, delivery_id, next, done_at, unadvanced)
values (:run_id, :step, :delivery_id, :next, case when :step = 'compensation:undo' then {now} end,
        case when :step = 'compensation:undo' then 1 end)
on conflict (run_id, name, occurrence) do nothing;
-- once
update {hf}workflow_run set waiting = 1 where id = :run

-- name: step_marks
-- The steps of a run that are done, its triggers, and whether its compensation has begun.
select t.name, t.done_at is not null from {hf}workflow_step t
where t.run_id = :run_id and t.occurrence = 0 and instr(t.name, '/') = 0 and instr(t.name, '@') = 0
