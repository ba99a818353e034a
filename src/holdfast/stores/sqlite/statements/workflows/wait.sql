-- name: suspend
-- Returns suspended steps to pending until their signal or their time, without an attempt. A run whose `signals` rose since
-- the step started is due at once: the signal may have come before the wait was stored. A step with a deadline is due then.
-- each: steps
update {hf}delivery
set status = 'pending', attempts = attempts - 1, expiries = 0, lease_until = null, locked_by = null,
    run_at = case
      when (select r.signals from {hf}workflow_run r where r.id = :run_id) <> :seen then {now}
      else min(
        coalesce(
          (select t.wake_at from {hf}workflow_step t
           where t.run_id = :run_id and t.name = :step and t.occurrence = :occurrence),
          {now} + :delay, {now} + 3155760000000),
        coalesce(:until, {now} + 3155760000000)) end
where id = :delivery_id and fence = :fence and locked_by = :worker
  and exists (select 1 from {hf}workflow_run r where r.id = :run_id and r.status in ('running', 'compensating'))
returning id, :run_id as run_id, :step as step, :occurrence as occurrence, :fence as fence, :signal as signal,
          :delay as delay, :stored as stored;
-- each: returned
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, signal, wake_at, fence)
select :run_id, :step, :occurrence, :id, :signal, {now} + :delay, :fence where :stored
on conflict (run_id, name, occurrence) do nothing;
select :id

-- name: resolve_wait
-- Writes the outcome of a wait once, under the fence of its step: the oldest open signal, or the time-out. Returns whether
-- the claim is still held, and the outcome if there is one.
-- once
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, signal, fence, outcome, result, done_at)
select :run_id, :step, :occurrence, d.id, :signal, :fence, case when g.id is null then 'timeout' else 'signal' end,
       g.payload, {now}
from {hf}delivery d
left join (
  select g.id, g.payload from {hf}workflow_signal g
  where g.run_id = :run_id and g.name = :signal and g.consumed_by is null order by g.id limit 1) g on true
where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker
  and (g.id is not null or exists (
    select 1 from {hf}workflow_step w
    where w.run_id = :run_id and w.name = :step and w.occurrence = :occurrence and w.done_at is null
      and w.wake_at <= {now}))
on conflict (run_id, name, occurrence) do update
set outcome = excluded.outcome, result = excluded.result, fence = excluded.fence, done_at = excluded.done_at
where t.done_at is null;
-- once
update {hf}workflow_signal set consumed_by = :step || '#' || :occurrence
where changes() > 0 and id = (
  select g.id from {hf}workflow_signal g
  where g.run_id = :run_id and g.name = :signal and g.consumed_by is null order by g.id limit 1);
-- once
select exists (
         select 1 from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker),
       t.outcome, t.result
from (select 1) one
left join {hf}workflow_step t on t.run_id = :run_id and t.name = :step and t.occurrence = :occurrence

-- name: reopen_wait
-- Removes the outcome of a wait while its step is claimed: after a retry the step must not get the same invalid signal.
update {hf}workflow_step set outcome = null, result = null, done_at = null
where run_id = :run_id and name = :step and occurrence = :occurrence and exists (
  select 1 from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker)
returning 1

-- name: memo
-- Remembers a value of a step, once, while its claim is held: a stale owner must not write.
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, fence, result, done_at)
select :run_id, :step, :occurrence, d.id, :fence, :result, {now}
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker
on conflict (run_id, name, occurrence) do nothing
returning 1

-- name: begin_deadline
-- Stores the deadline of a step at its first start, while its claim is held; returns the deadline and the current time.
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, wake_at, done_at)
select :run_id, :step, :occurrence, d.id, :fence, {now} + :deadline, {now}
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.locked_by = :worker
on conflict (run_id, name, occurrence) do update set fence = excluded.fence
returning wake_at, {now}

-- name: forget_deadline
-- Removes the deadline of a step that has failed: a replay starts a new one.
delete from {hf}workflow_step where run_id = :run_id and name = :step

-- name: raise_signals
-- Locks an active run and records that a suspended step may continue; the second statement then sees every wait.
update {hf}workflow_run set signals = signals + 1
where id = :run_id and status in ('running', 'compensating') returning id

-- name: store_signal
-- Stores a signal once and wakes the step that waits for it.
-- once
insert into {hf}workflow_signal (id, run_id, name, payload) values (:id, :run_id, :signal, :payload)
on conflict (id) do nothing
returning id;
-- each: returned
update {hf}delivery set run_at = {now}
where status = 'pending' and run_at > {now} and id in (
  select w.delivery_id from {hf}workflow_step w
  where w.run_id = :run_id and w.signal = :signal and w.signal is not null and w.done_at is null)

-- name: store_trigger
-- Records the trigger of a manual step once; it counts as one of the completions that the step waits for.
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, done_at, unadvanced)
values (:run_id, :step, 0, :delivery_id, {now}, 1)
on conflict (run_id, name, occurrence) do nothing
returning 1
