-- name: suspend
-- Returns suspended steps to pending until their signal or their time, without an attempt. A run whose `signals` rose since
-- the step started is due at once: the signal may have come before the wait was stored. A step with a deadline is due then.
with l as materialized (
  select s.run_id, s.step, s.occurrence, s.delivery_id, s.fence, s.seen, s.signal, s.delay, s.stored, s.until, r.signals,
         p.wake_at
  from unnest(:run_id::uuid[], :step::text[], :occurrence::integer[], :delivery_id::uuid[], :fence::bigint[],
              :seen::bigint[], :signal::text[], :delay::interval[], :stored::boolean[], :until::timestamptz[])
         s (run_id, step, occurrence, delivery_id, fence, seen, signal, delay, stored, until)
  cross join lateral (
    select r.signals from {hf}workflow_run r where r.id = s.run_id and r.status in ('running', 'compensating')
    for no key update {locking}) r
  left join lateral (
    select t.wake_at from {hf}workflow_step t
    where t.run_id = s.run_id and t.name = s.step and t.occurrence = s.occurrence offset 0) p on true),
u as (
  update {hf}delivery d
  set status = 'pending', attempts = d.attempts - 1, expiries = 0, lease_until = null, locked_by = null,
      run_at = case when l.signals <> l.seen then now()
                    else least(coalesce(l.wake_at, now() + l.delay, now() + interval '100 years'), l.until) end
  from l
  where d.id = any (array[l.delivery_id]) and case when d.locked_by = :worker::text then d.fence = l.fence end
  returning d.id, l.run_id, l.step, l.occurrence, l.fence, l.signal, l.delay, l.stored),
i as (
  insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, signal, wake_at, fence)
  select u.run_id, u.step, u.occurrence, u.id, u.signal, now() + u.delay, u.fence from u where u.stored
  on conflict (run_id, name, occurrence) do nothing)
select u.id from u

-- name: resolve_wait
-- Writes the outcome of a wait once, under the fence of its step: the oldest open signal, or the time-out. Returns whether
-- the claim is still held, and the outcome if there is one.
with own as materialized (
  select d.id from {hf}delivery d
  where d.id = :delivery_id::uuid and d.fence = :fence::bigint and d.locked_by = :worker::text for share),
w as materialized (
  select t.wake_at, t.done_at, t.outcome, t.result from own
  join {hf}workflow_step t on t.run_id = :run_id::uuid and t.name = :step::text and t.occurrence = :occurrence::integer),
g as materialized (
  select g.id, g.payload from {hf}workflow_signal g
  where g.run_id = :run_id::uuid and g.name = :signal::text and g.consumed_by is null
    and exists (select 1 from own) and not exists (select 1 from w where w.done_at is not null)
  order by g.id limit 1 for update skip locked),
c as (
  update {hf}workflow_signal g set consumed_by = :step::text || '#' || :occurrence::integer from g x where g.id = x.id),
o as (
  insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, signal, fence, outcome, result, done_at)
  select :run_id::uuid, :step::text, :occurrence::integer, own.id, :signal::text, :fence::bigint,
         case when g.id is null then 'timeout' else 'signal' end, g.payload, now()
  from own left join g on true
  where g.id is not null or exists (select 1 from w where w.done_at is null and w.wake_at <= now())
  on conflict (run_id, name, occurrence) do update
  set outcome = excluded.outcome, result = excluded.result, fence = excluded.fence, done_at = excluded.done_at
  where t.done_at is null
  returning t.outcome, t.result)
select exists (select 1 from own), coalesce(o.outcome, w.outcome), coalesce(o.result, w.result)::text
from (select 1) one left join o on true left join w on true

-- name: reopen_wait
-- Removes the outcome of a wait while its step is claimed: after a retry the step must not get the same invalid signal.
with own as materialized (
  select d.id from {hf}delivery d
  where d.id = :delivery_id::uuid and d.fence = :fence::bigint and d.locked_by = :worker::text for share)
update {hf}workflow_step t set outcome = null, result = null, done_at = null
from own where t.run_id = :run_id::uuid and t.name = :step::text and t.occurrence = :occurrence::integer
returning 1

-- name: memo
-- Remembers a value of a step, once, while its claim is held: a stale owner must not write.
with own as materialized (
  select d.id from {hf}delivery d
  where d.id = :delivery_id::uuid and d.fence = :fence::bigint and d.locked_by = :worker::text for share)
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, fence, result, done_at)
select :run_id::uuid, :step::text, :occurrence::integer, own.id, :fence::bigint, :result::text::jsonb, now() from own
on conflict (run_id, name, occurrence) do nothing
returning 1

-- name: begin_deadline
-- Stores the deadline of a step at its first start, while its claim is held; returns the deadline and the current time.
with own as materialized (
  select d.id from {hf}delivery d
  where d.id = :delivery_id::uuid and d.fence = :fence::bigint and d.locked_by = :worker::text for share)
insert into {hf}workflow_step as t (run_id, name, occurrence, delivery_id, fence, wake_at, done_at)
select :run_id::uuid, :step::text, :occurrence::integer, own.id, :fence::bigint, now() + :deadline::interval, now() from own
on conflict (run_id, name, occurrence) do update set fence = excluded.fence
returning t.wake_at, now()

-- name: forget_deadline
-- Removes the deadline of a step that has failed: a replay starts a new one.
delete from {hf}workflow_step where run_id = :run_id::uuid and name = :step::text

-- name: raise_signals
-- Locks an active run and records that a suspended step may continue; the second statement then sees every wait.
update {hf}workflow_run set signals = signals + 1
where id = :run_id::uuid and status in ('running', 'compensating') returning id

-- name: store_signal
-- Stores a signal once and wakes the step that waits for it.
with i as (
  insert into {hf}workflow_signal (id, run_id, name, payload)
  values (:id::uuid, :run_id::uuid, :signal::text, :payload::text::jsonb)
  on conflict (id) do nothing
  returning id)
update {hf}delivery d set run_at = now()
from i, {hf}workflow_step w
where w.run_id = :run_id::uuid and w.signal = :signal::text and w.signal is not null and w.done_at is null
  and d.id = w.delivery_id and d.status = 'pending' and d.run_at > now()

-- name: store_trigger
-- Records the trigger of a manual step once; it counts as one of the completions that the step waits for.
insert into {hf}workflow_step (run_id, name, occurrence, delivery_id, done_at, unadvanced)
values (:run_id::uuid, :step::text, 0, :delivery_id::uuid, now(), true)
on conflict (run_id, name, occurrence) do nothing
returning 1
