-- name: travel
-- Moves all stored times into the past.
with d as (
  update {hf}delivery
  set run_at = run_at - :by::interval, created_at = created_at - :by::interval,
      claimed_at = claimed_at - :by::interval, completed_at = completed_at - :by::interval,
      lease_until = lease_until - :by::interval, first_failed_at = first_failed_at - :by::interval,
      discarded_at = discarded_at - :by::interval),
w as (update {hf}worker set started_at = started_at - :by::interval, alive_until = alive_until - :by::interval),
c as (update {hf}consumer
      set blocked_until = blocked_until - :by::interval, blocked_at = blocked_at - :by::interval,
          paused_at = paused_at - :by::interval),
s as (update {hf}schedule
      set last_at = last_at - :by::interval, next_at = next_at - :by::interval,
          paused_at = paused_at - :by::interval),
i as (update {hf}idempotency
      set reserved_at = reserved_at - :by::interval, lease_until = lease_until - :by::interval,
          completed_at = completed_at - :by::interval, expires_at = expires_at - :by::interval),
l as (update {hf}idempotency_lease set lease_until = lease_until - :by::interval),
a as (update {hf}alert set told_at = told_at - :by::interval),
k as (update {hf}seen set expires_at = expires_at - :by::interval),
e as (update {hf}endpoint
      set previous_until = previous_until - :by::interval, created_at = created_at - :by::interval,
          disabled_at = disabled_at - :by::interval),
b as (update {hf}breaker
      set open_until = open_until - :by::interval, probe_until = probe_until - :by::interval,
          changed_at = changed_at - :by::interval, window_at = window_at - :by::interval),
r as (update {hf}workflow_run
      set started_at = started_at - :by::interval, ended_at = ended_at - :by::interval,
          deadline = deadline - :by::interval),
t as (update {hf}workflow_step set wake_at = wake_at - :by::interval, done_at = done_at - :by::interval),
g as (update {hf}workflow_signal set sent_at = sent_at - :by::interval),
o as (update {hf}result set stored_at = stored_at - :by::interval, expires_at = expires_at - :by::interval),
pr as (update {hf}progress set reported_at = reported_at - :by::interval),
jg as (update {hf}job_group set created_at = created_at - :by::interval, cancelled_at = cancelled_at - :by::interval),
jm as (update {hf}job_group_member set decided_at = decided_at - :by::interval where decided_at is not null)
update {hf}message set occurred_at = occurred_at - :by::interval

-- name: abandon
-- Takes a delivery away from its owner.
update {hf}delivery
set status = 'pending', fence = fence + 1, run_at = now(), lease_until = null, locked_by = null
where id = :delivery_id::uuid and status = 'in_flight'

-- name: orphan
-- Assigns an in-flight delivery to a worker that does not exist.
update {hf}delivery
set locked_by = 'gone', lease_until = now() - interval '1 second'
where id = :delivery_id::uuid and status = 'in_flight'

-- name: drop_schema
-- Removes all tables.
drop schema {schema} cascade
