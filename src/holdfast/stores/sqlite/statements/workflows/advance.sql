-- fragment: skip_locked

-- name: advance
-- Settles completed steps under their fences, stores their results and makes the steps due that waited only for them. The
-- first statement finds the claims that are held; the transaction has the write lock, so they cannot be lost after it. A
-- batch without joins, successors or last steps leaves out the statements about them. The joins are `cross join`, which
-- SQLite does not reorder: it would read all items of a map for each row of the batch.
-- all: steps
with s as materialized (
  select json_extract(value, '$[0]') as run_id, json_extract(value, '$[1]') as step,
         json_extract(value, '$[2]') as occurrence, json_extract(value, '$[3]') as delivery_id,
         json_extract(value, '$[4]') as fence, json_extract(value, '$[5]') as result, json_extract(value, '$[6]') as next
  from json_each(:rows))
select d.id, r.status, s.run_id, s.step, s.occurrence, s.fence, s.result, s.next,
       t.done_at is null and (r.status = 'running' or s.step like '%:undo') as counts
from s
cross join {hf}delivery d on d.id = s.delivery_id and d.fence = s.fence and d.locked_by = :worker
cross join {hf}workflow_run r on r.id = s.run_id and r.status in ('running', 'compensating')
left join {hf}workflow_step t on t.run_id = s.run_id and t.name = s.step and t.occurrence = s.occurrence;
-- all: returned
update {hf}delivery as d
set status = 'delivered', completed_at = {now}, suspect = 0, expiries = 0, lease_until = null, locked_by = null
from json_each(:rows) u
where d.id = json_extract(u.value, '$[0]');
-- all: returned
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at)
select json_extract(u.value, '$[2]'), json_extract(u.value, '$[3]'), json_extract(u.value, '$[4]'),
       json_extract(u.value, '$[0]'), json_extract(u.value, '$[5]'), json_extract(u.value, '$[6]'), {now}
from json_each(:rows) u where true
on conflict (run_id, name, occurrence) do update
set fence = excluded.fence, result = excluded.result, version = null, done_at = excluded.done_at, unadvanced = null;
-- all: returned
{counted_joins};
-- all: returned
{next_steps};
-- all: returned
{woken_steps};
-- all: returned
{changed_runs};
-- all: returned
{result}

-- name: advance_completed
-- Advances steps that `ctx.complete` settled in the handler's transaction; each is advanced once.
-- each: steps
update {hf}workflow_step set unadvanced = null
where run_id = :run_id and name = :step and occurrence = :occurrence and unadvanced
  and exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status in ('running', 'compensating'))
returning delivery_id as id, (select r.status from {hf}workflow_run r where r.id = :run_id) as status,
          :run_id as run_id, :step as step, :occurrence as occurrence, null as fence, null as result, :next as next,
          :step like '%:undo'
          or exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status = 'running') as counts;
-- all: returned
{join_counters};
-- all: returned
{successors};
-- all: returned
{woken_step};
-- all: returned
{run_progress};
-- all: returned
{settled_rows}
{advanced_rows}

-- fragment: next_texts
-- Each text once: all items of a map have the same.
select json_extract(u.value, '$[2]') as run_id, json_extract(u.value, '$[7]') as next, count(*) as n
from json_each(:rows) u where json_extract(u.value, '$[8]') group by 1, 2

-- fragment: join_counters
insert into {hf}workflow_step as t (run_id, name, delivery_id, waiting, arrived, done_at)
select x.run_id, x.name, x.id, x.joins - x.n, x.n, case when x.joins = x.n and instr(x.name, '/') > 0 then {now} end
from ({counted_steps}) x
where x.joins > 1 or instr(x.name, '/') > 0
on conflict (run_id, name, occurrence) do update
set waiting = t.waiting - excluded.arrived,
    done_at = case when t.waiting = excluded.arrived and instr(t.name, '/') > 0 then {now} end

-- fragment: counted_steps
-- The steps and joins that wait for steps of this batch, each with their number.
select g.run_id, json_extract(n.value, '$.name') as name, json_extract(n.value, '$.id') as id,
       json_extract(n.value, '$.joins') as joins, sum(g.n) as n
from ({next_texts}) g, json_each(g.next) n
group by 1, 2, 3, 4

-- fragment: successors
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, failure_history)
select json_extract(n.value, '$.id'), r.id, c.name, c.queue, c.priority, max(r.generation, c.generation), '[]'
from json_each(:rows) u cross join json_each(json_extract(u.value, '$[7]')) n
cross join {hf}workflow_run r on r.id = json_extract(u.value, '$[2]')
left join {hf}consumer c on c.name = r.name || '/' || json_extract(n.value, '$.name')
where json_extract(u.value, '$[8]') and instr(json_extract(n.value, '$.name'), '/') = 0
  and (json_extract(n.value, '$.joins') = 1 {joined})
on conflict (id) do nothing

-- fragment: joined_steps
or exists (
  select 1 from {hf}workflow_step t
  where t.run_id = r.id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0 and t.waiting = 0)

-- fragment: woken_step
update {hf}delivery set run_at = {now}
where status = 'pending' and run_at > {now} and id in (
  select t.delivery_id from ({next_texts}) g cross join json_each(g.next) n
  cross join {hf}workflow_step t
    on t.run_id = g.run_id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0
  where instr(json_extract(n.value, '$.name'), '/') > 0 and t.waiting = 0)

-- fragment: run_progress
update {hf}workflow_run as r
set waiting = r.waiting - y.ended, signals = r.signals + y.woken,
    status = case when r.waiting > y.ended then r.status when r.status = 'compensating' then 'failed' else 'done' end,
    ended_at = case when r.waiting <= y.ended then {now} end
from (
  select w.run_id, sum(w.ended) as ended, sum(w.woken) as woken
  from (
    select json_extract(u.value, '$[2]') as run_id, 1 as ended, 0 as woken from json_each(:rows) u
    where json_extract(u.value, '$[8]') and json_extract(u.value, '$[7]') = '[]'
    {woken_runs}) w
  group by w.run_id) y
where r.id = y.run_id

-- fragment: joins_done
union all
select distinct t.run_id, 0, 1 from ({next_texts}) g cross join json_each(g.next) n
cross join {hf}workflow_step t
  on t.run_id = g.run_id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0
where instr(json_extract(n.value, '$.name'), '/') > 0 and t.waiting = 0

-- fragment: settled_rows
select json_extract(u.value, '$[0]'), json_extract(u.value, '$[1]'), null, null, null, null from json_each(:rows) u

-- fragment: advanced_rows
union all select null, r.status, r.id, r.name, r.parent_run, r.reason from {hf}workflow_run r
where r.ended_at is not null
  and r.id in (select json_extract(u.value, '$[2]') from json_each(:rows) u where json_extract(u.value, '$[7]') = '[]')

-- name: store_result
-- Stores the large result of a step that this transaction completed.
update {hf}workflow_step set result = :result where run_id = :run_id and name = :step and occurrence = :occurrence

-- name: store_version
-- Stores the form of the result of a step that this transaction completed.
update {hf}workflow_step set version = :version where run_id = :run_id and name = :step and occurrence = :occurrence

-- name: complete_step
-- Stores the result of a step in the caller's transaction; a worker advances the run after its commit. Only the first
-- completion advances it.
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at, unadvanced)
values (:run_id, :step, :occurrence, :delivery_id, :fence, :result, {now}, 1)
on conflict (run_id, name, occurrence) do update
set fence = excluded.fence, result = excluded.result, version = null, done_at = coalesce(t.done_at, excluded.done_at),
    unadvanced = case when t.done_at is null then 1 else t.unadvanced end

-- name: unadvanced_steps
-- Steps that were completed in a handler's transaction and not advanced since, for example because the worker died.
select t.run_id, t.name, t.occurrence, t.next, r.name, r.version, r.epoch, m.source, m.generation
from {hf}workflow_step t join {hf}workflow_run r on r.id = t.run_id join {hf}message m on m.id = r.id
where t.unadvanced and t.done_at < {now} - :older_than
order by t.run_id limit :limit

-- name: unadvanced_of_run
-- The steps of a run that were completed in a handler's transaction and not advanced since.
select t.name, t.occurrence, t.next from {hf}workflow_step t where t.run_id = :run_id and t.unadvanced

-- name: forget_unadvanced_of_run
-- Clears `unadvanced` of the steps of a run whose progress is computed again from the steps that are done.
update {hf}workflow_step set unadvanced = null where run_id = :run_id and unadvanced

-- name: forget_unadvanced
-- Clears `unadvanced` of completed steps whose run has ended.
update {hf}workflow_step set unadvanced = null
where unadvanced and done_at < {now} - :older_than
  and run_id in (select r.id from {hf}workflow_run r where r.status not in ('running', 'compensating'))

-- name: limit_lock_wait
-- Limits how long the statements of this transaction wait for a lock: they have the only write lock already.
select :milliseconds
