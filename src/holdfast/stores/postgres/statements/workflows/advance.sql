-- fragment: skip_locked
skip locked

-- name: advance
-- Settles completed steps under their fences, stores their results and makes the steps due that waited only for them.
-- One statement for a batch that is sorted by run. A run that another transaction has locked is left for the next batch.
-- A join is a counter that is written by upsert: counting rows would use the snapshot from before the lock. All changes of
-- a run are one UPDATE. Lookups are lateral, because joins of CTEs compare 500 rows with 500 rows in a generic plan.
-- A batch without joins, successors or last steps leaves out the parts about them: to start them takes a tenth of the time
-- of a single step.
with l as materialized (
  select s.run_id, s.step, s.occurrence, s.delivery_id, s.fence, s.result, s.next, r.status, p.done_at is null as first
  from unnest(:run_id::uuid[], :step::text[], :occurrence::integer[], :delivery_id::uuid[], :fence::bigint[],
              :result::text[], :next::text[]) s (run_id, step, occurrence, delivery_id, fence, result, next)
  cross join lateral (
    select r.status from {hf}workflow_run r where r.id = s.run_id and r.status in ('running', 'compensating')
    for no key update {locking}) r
  left join lateral (
    select t.done_at from {hf}workflow_step t
    where t.run_id = s.run_id and t.name = s.step and t.occurrence = s.occurrence offset 0) p on true),
u as (
  update {hf}delivery d
  set status = 'delivered', completed_at = now(), suspect = false, expiries = 0, lease_until = null, locked_by = null
  from l
  where d.id = any (array[l.delivery_id]) and case when d.locked_by = :worker::text then d.fence = l.fence end
  returning d.id, l.run_id, l.step, l.occurrence, l.fence, l.result, l.next, l.status,
            l.first and (l.status = 'running' or l.step like '%:undo') as counts),
f as (
  insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at)
  select u.run_id, u.step, u.occurrence, u.id, u.fence, u.result::jsonb, now() from u
  on conflict (run_id, name, occurrence) do update
  set fence = excluded.fence, result = excluded.result, version = null, done_at = excluded.done_at, unadvanced = null),
x as materialized ({counted_steps})
{counted_joins}
{next_steps}
{woken_steps}
{changed_runs}
select u.id, u.status, null::uuid, null::text, null::uuid, null::text from u
{result}

-- name: advance_completed
-- Advances steps that `ctx.complete` settled in the handler's transaction; each is advanced once.
with l as materialized (
  select s.run_id, s.step, s.occurrence, s.next, r.status
  from unnest(:run_id::uuid[], :step::text[], :occurrence::integer[], :next::text[]) s (run_id, step, occurrence, next)
  cross join lateral (
    select r.status from {hf}workflow_run r where r.id = s.run_id and r.status in ('running', 'compensating')
    for no key update) r),
u as (
  update {hf}workflow_step t set unadvanced = null
  from l
  where t.run_id = l.run_id and t.name = l.step and t.occurrence = l.occurrence and t.unadvanced
  returning t.delivery_id as id, l.run_id, l.next, l.status, l.status = 'running' or l.step like '%:undo' as counts),
x as materialized ({counted_steps})
{join_counters}
{successors}
{woken_step}
{run_progress}
select u.id, u.status, null::uuid, null::text, null::uuid, null::text from u
{advanced_rows}

-- fragment: next_texts
-- Each text once: all items of a map have the same.
select u.run_id, u.next, count(*) as n from u where u.counts group by 1, 2

-- fragment: join_counters
, j as (
  insert into {hf}workflow_step as t (run_id, name, delivery_id, waiting, arrived, done_at)
  select x.run_id, x.name, x.delivery_id, x.joins - x.n, x.n,
         case when x.joins = x.n and strpos(x.name, '/') > 0 then now() end
  from x where x.joins > 1 or strpos(x.name, '/') > 0
  order by x.run_id, x.name
  on conflict (run_id, name, occurrence) do update
  set waiting = t.waiting - excluded.arrived,
      done_at = case when t.waiting = excluded.arrived and strpos(t.name, '/') > 0 then now() end
  returning t.run_id, t.name, t.delivery_id, t.waiting)

-- fragment: counted_steps
-- The steps and joins that wait for steps of this batch, each with their number.
select g.run_id, n.name, n.id as delivery_id, n.joins, sum(g.n)::integer as n
from ({next_texts}) g cross join lateral jsonb_to_recordset(g.next::jsonb) n (name text, id uuid, joins integer)
group by 1, 2, 3, 4

-- fragment: successors
-- The names of steps and of joins have different collations, so the collation is stated: without it no index is used.
, q as (
  insert into {hf}delivery (id, message_id, consumer, queue, priority, generation)
  select z.delivery_id, z.run_id, c.name, c.queue, c.priority, greatest(r.generation, c.generation)
  from (select x.run_id, x.name, x.delivery_id from x where x.joins = 1 and strpos(x.name, '/') = 0
        {joined}) z
  cross join lateral (
    select r.name, r.generation from {hf}workflow_run r where r.id = z.run_id offset 0) r
  left join lateral (
    select c.name, c.queue, c.priority, c.generation from {hf}consumer c
    where c.name = (r.name || '/' || z.name) collate "default" offset 0) c on true
  on conflict (id) do nothing)

-- fragment: joined_steps
union all select j.run_id, j.name, j.delivery_id from j where j.waiting = 0 and strpos(j.name, '/') = 0

-- fragment: woken_step
-- The status is read in SET, which sees the newest row: in the snapshot a step may be in flight whose suspension committed
-- while this statement waited for the lock of its run.
, k as (
  update {hf}delivery d
  set run_at = case when d.status = 'pending' then least(d.run_at, now()) else d.run_at end
  from j
  where j.waiting = 0 and strpos(j.name, '/') > 0 and d.id = any (array[j.delivery_id]))

-- fragment: run_progress
, e as (
  update {hf}workflow_run r
  set waiting = r.waiting - y.ended, signals = r.signals + y.woken,
      status = case when r.waiting > y.ended then r.status when r.status = 'compensating' then 'failed' else 'done' end,
      ended_at = case when r.waiting <= y.ended then now() end
  from (select w.run_id, sum(w.ended)::integer as ended, sum(w.woken) as woken
        from (select u.run_id, 1 as ended, 0 as woken from u where u.counts and u.next = '[]'
              {woken_runs}) w
        group by 1) y
  where r.id = any (array[y.run_id])
  returning r.id, r.status, r.name, r.parent_run, r.reason, r.ended_at)

-- fragment: joins_done
union all select j.run_id, 0, 1 from j where j.waiting = 0 and strpos(j.name, '/') > 0

-- fragment: settled_rows

-- fragment: advanced_rows
union all select null, e.status, e.id, e.name, e.parent_run, e.reason from e where e.ended_at is not null

-- name: store_result
-- Stores the large result of a step that this transaction completed; in an array it would be escaped for 100 ms.
update {hf}workflow_step set result = :result::text::jsonb
where run_id = :run_id::uuid and name = :step::text and occurrence = :occurrence::integer

-- name: store_version
-- Stores the form of the result of a step that this transaction completed.
update {hf}workflow_step set version = :version::integer
where run_id = :run_id::uuid and name = :step::text and occurrence = :occurrence::integer

-- name: complete_step
-- Stores the result of a step in the caller's transaction; a worker advances the run after its commit. Only the first
-- completion advances it.
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at, unadvanced)
values (:run_id::uuid, :step::text, :occurrence::integer, :delivery_id::uuid, :fence::bigint, :result::text::jsonb, now(),
        true)
on conflict (run_id, name, occurrence) do update
set fence = excluded.fence, result = excluded.result, version = null, done_at = coalesce(t.done_at, excluded.done_at),
    unadvanced = case when t.done_at is null then true else t.unadvanced end

-- name: unadvanced_steps
-- Steps that were completed in a handler's transaction and not advanced since, for example because the worker died.
select t.run_id, t.name, t.occurrence, t.next, r.name, r.version, r.epoch, m.source, m.generation
from {hf}workflow_step t join {hf}workflow_run r on r.id = t.run_id join {hf}message m on m.id = r.id
where t.unadvanced and t.done_at < now() - :older_than::interval
order by t.run_id limit {limit}

-- name: unadvanced_of_run
-- The steps of a run that were completed in a handler's transaction and not advanced since.
select t.name, t.occurrence, t.next from {hf}workflow_step t where t.run_id = :run_id::uuid and t.unadvanced

-- name: forget_unadvanced_of_run
-- Clears `unadvanced` of the steps of a run whose progress is computed again from the steps that are done.
update {hf}workflow_step set unadvanced = null where run_id = :run_id::uuid and unadvanced

-- name: forget_unadvanced
-- Clears `unadvanced` of completed steps whose run has ended.
update {hf}workflow_step t set unadvanced = null
from {hf}workflow_run r
where t.unadvanced and t.done_at < now() - :older_than::interval and r.id = t.run_id
  and r.status not in ('running', 'compensating')

-- name: limit_lock_wait
-- Limits how long the statements of this transaction wait for a lock.
select set_config('lock_timeout', :milliseconds::text, true)
