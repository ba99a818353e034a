-- fragment: skip_locked

-- name: advance
-- Settles completed steps under their fences, stores their results and makes the steps due that waited only for them. Row by
-- row: the transaction has the only write lock, so each row sees what the rows before it changed.
-- each: steps
update {hf}delivery
set status = 'delivered', completed_at = {now}, suspect = 0, expiries = 0, lease_until = null, locked_by = null
where id = :delivery_id and fence = :fence and locked_by = :worker
  and exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status in ('running', 'compensating'))
returning id, :run_id as run_id, :step as step, :occurrence as occurrence, :fence as fence, :result as result,
          :next as next, (select r.status from {hf}workflow_run r where r.id = :run_id) as status,
          not exists (
            select 1 from {hf}workflow_step t
            where t.run_id = :run_id and t.name = :step and t.occurrence = :occurrence and t.done_at is not null)
          and (:step like '%:undo'
               or exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status = 'running')) as counts;
-- each: returned
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at)
values (:run_id, :step, :occurrence, :id, :fence, :result, {now})
on conflict (run_id, name, occurrence) do update
set fence = excluded.fence, result = excluded.result, done_at = excluded.done_at, unadvanced = null;
{join_counters};
{successors};
{woken_step};
{run_progress};
select :id, null, :status, null, null, null

-- name: advance_completed
-- Advances steps that `ctx.complete` settled in the handler's transaction; each is advanced once.
-- each: steps
update {hf}workflow_step set unadvanced = null
where run_id = :run_id and name = :step and occurrence = :occurrence and unadvanced
  and exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status in ('running', 'compensating'))
returning delivery_id as id, :run_id as run_id, :next as next,
          (select r.status from {hf}workflow_run r where r.id = :run_id) as status,
          :step like '%:undo'
          or exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status = 'running') as counts;
-- each: returned
{join_counters};
{successors};
{woken_step};
{run_progress};
select :id, null, :status, null, null, null

-- fragment: join_counters
insert into {hf}workflow_step as t (run_id, name, delivery_id, waiting, arrived, done_at)
select :run_id, json_extract(n.value, '$.name'), json_extract(n.value, '$.id'), json_extract(n.value, '$.joins') - 1, 1,
       case when json_extract(n.value, '$.joins') = 1 then {now} end
from json_each(:next) n
where :counts and (json_extract(n.value, '$.joins') > 1 or instr(json_extract(n.value, '$.name'), '/') > 0)
on conflict (run_id, name, occurrence) do update
set waiting = t.waiting - 1, done_at = case when t.waiting = 1 and instr(t.name, '/') > 0 then {now} end

-- fragment: successors
insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, failure_history)
select json_extract(n.value, '$.id'), r.id, c.name, c.queue, c.priority, max(r.generation, c.generation), '[]'
from json_each(:next) n
join {hf}workflow_run r on r.id = :run_id
left join {hf}consumer c on c.name = r.name || '/' || json_extract(n.value, '$.name')
where :counts and instr(json_extract(n.value, '$.name'), '/') = 0
  and (json_extract(n.value, '$.joins') = 1
       or exists (
         select 1 from {hf}workflow_step t
         where t.run_id = :run_id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0 and t.waiting = 0))
on conflict (id) do nothing

-- fragment: woken_step
update {hf}delivery set run_at = {now}
where :counts and status = 'pending' and run_at > {now} and id in (
  select json_extract(n.value, '$.id') from json_each(:next) n join {hf}workflow_step t
    on t.run_id = :run_id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0
  where instr(t.name, '/') > 0 and t.waiting = 0)

-- fragment: run_progress
update {hf}workflow_run
set waiting = waiting - (:next = '[]'), signals = signals + (:next <> '[]'),
    status = case when waiting > (:next = '[]') then status when status = 'compensating' then 'failed' else 'done' end,
    ended_at = case when waiting <= (:next = '[]') then {now} end
where id = :run_id and :counts and (:next = '[]' or exists (
  select 1 from json_each(:next) n join {hf}workflow_step t
    on t.run_id = :run_id and t.name = json_extract(n.value, '$.name') and t.occurrence = 0
  where instr(t.name, '/') > 0 and t.waiting = 0))
returning null, id, status, name, parent_run, reason

-- name: store_result
-- Stores the large result of a step that this transaction completed.
update {hf}workflow_step set result = :result where run_id = :run_id and name = :step and occurrence = :occurrence

-- name: complete_step
-- Stores the result of a step in the caller's transaction; a worker advances the run after its commit. Only the first
-- completion advances it.
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, result, done_at, unadvanced)
values (:run_id, :step, :occurrence, :delivery_id, :fence, :result, {now}, 1)
on conflict (run_id, name, occurrence) do update
set fence = excluded.fence, result = excluded.result, done_at = coalesce(t.done_at, excluded.done_at),
    unadvanced = case when t.done_at is null then 1 else t.unadvanced end

-- name: unadvanced_steps
-- Steps that were completed in a handler's transaction and not advanced since, for example because the worker died.
select t.run_id, t.name, t.occurrence, t.next, r.name, r.version, r.epoch, m.source, m.generation
from {hf}workflow_step t join {hf}workflow_run r on r.id = t.run_id join {hf}message m on m.id = r.id
where t.unadvanced and t.done_at < {now} - :older_than
order by t.run_id limit :limit

-- name: forget_unadvanced
-- Clears the mark of completed steps whose run has ended.
update {hf}workflow_step set unadvanced = null
where unadvanced and done_at < {now} - :older_than
  and run_id in (select r.id from {hf}workflow_run r where r.status not in ('running', 'compensating'))

-- name: limit_lock_wait
-- Limits how long the statements of this transaction wait for a lock: they have the only write lock already.
select :milliseconds
