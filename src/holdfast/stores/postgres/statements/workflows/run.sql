-- name: start_runs
-- Stores the start message, the run and the deliveries of its first steps, unless its key exists; returns the new runs.
with m as (
  insert into {hf}message (id, type, source, key, key_scope, payload, headers, generation, occurred_at, sub_epoch)
  select m.id, m.type, m.source, m.key, m.key_scope, m.payload::jsonb, m.headers::jsonb, m.generation,
         coalesce(m.occurred_at, now()), m.sub_epoch
  from unnest(:id::uuid[], :type::text[], :source::text[], :payload::text[], :headers::text[], :generation::bigint[],
              :occurred_at::timestamptz[], :sub_epoch::bigint[], :key::text[], :key_scope::text[])
         m (id, type, source, payload, headers, generation, occurred_at, sub_epoch, key, key_scope)
  on conflict do nothing
  returning id),
r as (
  insert into {hf}workflow_run
    (id, name, version, waiting, generation, parent_run, parent_wait, parent_occurrence, deadline)
  select r.run_id, r.name, r.version, r.waiting, r.run_generation, r.parent_run, r.parent_wait, r.parent_occurrence,
         now() + r.deadline
  from unnest(:run_id::uuid[], :name::text[], :version::integer[], :waiting::integer[], :run_generation::bigint[],
              :parent_run::uuid[], :parent_wait::text[], :parent_occurrence::integer[], :deadline::interval[])
         r (run_id, name, version, waiting, run_generation, parent_run, parent_wait, parent_occurrence, deadline)
  where r.run_id in (select m.id from m)),
d as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, max_attempts, run_at, retry)
  select d.id, d.message_id, d.consumer, d.queue, d.priority, d.generation, d.max_attempts,
         coalesce(d.run_at, now() + d.delay, now()), d.retry::jsonb
  from unnest(:delivery_id::uuid[], :message_id::uuid[], :consumer::text[], :queue::text[], :priority::smallint[],
              :delivery_generation::bigint[], :max_attempts::integer[], :delay::interval[],
              :run_at::timestamptz[], :retry::text[])
         d (id, message_id, consumer, queue, priority, generation, max_attempts, delay, run_at, retry)
  where d.message_id in (select m.id from m))
select m.id from m

-- name: load_steps
-- The run of each claimed step, the results that it takes, and one row for each value that it remembers. A mapped step has
-- its item instead: it remembers nothing.
select w.n, r.name, r.version, r.status, r.signals, r.epoch, t.name, t.occurrence, t.result::text, t.outcome,
       t.done_at is not null, t.item::text, t.next, t.version
from unnest(:run_id::uuid[], :step::text[], :results::text[], :delivery_id::uuid[], :mapped::boolean[])
       with ordinality w (run_id, step, results, delivery_id, mapped, n)
cross join lateral (
  select r.name, r.version, r.status, r.signals, r.epoch from {hf}workflow_run r where r.id = w.run_id offset 0) r
left join lateral (
  select t.name, t.occurrence, t.result, t.outcome, t.done_at, t.item, t.next, t.version
  from jsonb_array_elements_text(w.results::jsonb) wanted (name)
  cross join lateral (
    select t.* from {hf}workflow_step t where t.run_id = w.run_id and t.name = wanted.name and t.occurrence = 0 offset 0) t
  union all
  select t.name, t.occurrence, t.result, t.outcome, t.done_at, t.item, t.next, t.version from {hf}workflow_step t
  where w.mapped and t.delivery_id = w.delivery_id and t.item is not null
  union all
  select t.name, t.occurrence, t.result, t.outcome, t.done_at, t.item, t.next, t.version from {hf}workflow_step t
  where not w.mapped and t.run_id = w.run_id and t.name >= w.step || '/' and t.name < w.step || '0'
  offset 0) t on true

-- name: run_states
-- The status of these runs.
select r.id, r.status from {hf}workflow_run r where r.id = any (:ids::uuid[])

-- name: lock_run
-- Locks a run for a decision; later statements of the transaction see what others committed before.
select r.name, r.version, r.status, r.epoch, r.parent_run, m.source, m.generation
from {hf}workflow_run r join {hf}message m on m.id = r.id
where r.id = :run_id::uuid for no key update of r

-- name: end_run
-- Ends a run, or begins its compensation.
update {hf}workflow_run
set status = :status::text, reason = coalesce(:reason::text, reason),
    ended_at = case when :status::text <> 'compensating' then now() end
where id = :run_id::uuid and status in ('running', 'compensating')
returning parent_run, reason

-- name: discard_steps
-- Discards the unfinished deliveries of a run with a new fence. A locked one is discarded when its run is read or settled.
with c as materialized (
  select d.id from {hf}delivery d
  where d.message_id = :run_id::uuid and d.id between :low::uuid and :high::uuid and d.status in ('pending', 'in_flight')
    and (d.status = 'pending' or :running::boolean) and d.consumer <> :commands::text
  for update of d skip locked)
update {hf}delivery d
set status = 'failed', completed_at = now(), discarded_at = now(), fence = d.fence + 1,
    last_error = :reason::text, lease_until = null, locked_by = null
where d.id = any (array(select c.id from c))
returning d.id

-- name: run_result
-- The state of a run and the result of each last step.
select r.name, r.version, r.status, r.reason, t.name, t.result::text, t.version
from {hf}workflow_run r
left join {hf}workflow_step t on t.run_id = r.id and t.occurrence = 0 and t.done_at is not null
  and strpos(t.name, '/') = 0 and strpos(t.name, ':') = 0 and strpos(t.name, '@') = 0
where r.id = :run_id::uuid

-- name: prune_runs
-- Removes ended runs of a batch whose parent has ended and of which no delivery is unfinished or a dead letter.
with old as materialized (
  select r.id from {hf}workflow_run r
  where r.id >= :cursor::uuid and r.id < :ceiling::uuid and r.status in ('done', 'cancelled', 'failed')
    and r.ended_at < now() - :older_than::interval
    and not exists (
      select 1 from {hf}workflow_run p where p.id = r.parent_run and p.status in ('running', 'compensating') offset 0)
    and not exists (
      select 1 from {hf}delivery d
      where d.message_id = r.id
        and d.id between (left(r.id::text, 18) || '-8000-000000000000')::uuid
                     and (left(r.id::text, 18) || '-bfff-ffffffffffff')::uuid
        and (d.status in ('pending', 'in_flight') or (d.status = 'failed' and d.discarded_at is null))
      offset 0)
  order by r.id limit {limit} for update skip locked),
s as (delete from {hf}workflow_step t where t.run_id in (select old.id from old)),
g as (delete from {hf}workflow_signal g where g.run_id in (select old.id from old)),
r as (delete from {hf}workflow_run r where r.id in (select old.id from old))
select old.id from old

-- name: run_deliveries
-- The deliveries of a run: consumer, status, and whether it was ever claimed.
select d.consumer, d.status, d.claimed_at is not null from {hf}delivery d
where d.message_id = :run_id::uuid and d.id between :low::uuid and :high::uuid and d.consumer <> :commands::text

-- name: active_children
-- The child runs of a run that have not ended.
select r.id from {hf}workflow_run r where r.parent_run = :run_id::uuid and r.status in ('running', 'compensating')

-- name: child_of
-- The newest child run that a step waits for, unless it failed or was cancelled.
select r.id from {hf}workflow_run r
where r.parent_run = :run_id::uuid and r.parent_wait = :wait::text and r.parent_occurrence = :occurrence::integer
  and r.status in ('running', 'compensating', 'done')
order by r.id desc limit 1

-- name: expired_runs
-- Active runs whose deadline has passed.
select r.id from {hf}workflow_run r
where r.deadline is not null and r.ended_at is null and r.deadline <= now() and r.status = 'running'
order by r.deadline limit 100

-- name: compensating_runs
-- Runs that are compensated and of which nothing is unfinished: a worker may have died before it began the undo steps.
select r.id from {hf}workflow_run r
where r.status = 'compensating'
  and not exists (
    select 1 from {hf}delivery d
    where d.message_id = r.id
      and d.id between (left(r.id::text, 18) || '-8000-000000000000')::uuid
                   and (left(r.id::text, 18) || '-bfff-ffffffffffff')::uuid
      and d.status in ('pending', 'in_flight')
    offset 0)
  and not exists (
    select 1 from {hf}workflow_step t where t.run_id = r.id and t.name = 'compensation:undo' and t.occurrence = 0 offset 0)
order by r.id limit 100

-- name: plan_undo
-- Stores the undo steps of a run with what follows each; the last of them ends the run.
with s as (
  insert into {hf}workflow_step (run_id, name, delivery_id, next, done_at, unadvanced)
  select s.run_id, s.step, s.delivery_id, s.next, case when s.step = 'compensation:undo' then now() end,
         case when s.step = 'compensation:undo' then true end
  from unnest(:run_id::uuid[], :step::text[], :delivery_id::uuid[], :next::text[]) s (run_id, step, delivery_id, next)
  on conflict (run_id, name, occurrence) do nothing)
update {hf}workflow_run set waiting = 1 where id = :run::uuid

-- name: step_marks
-- The steps of a run that are done, its triggers, and whether its compensation has begun.
select t.name, t.done_at is not null from {hf}workflow_step t
where t.run_id = :run_id::uuid and t.occurrence = 0 and strpos(t.name, '/') = 0 and strpos(t.name, '@') = 0
