-- name: travel
-- Moves all stored times into the past.
-- once
update {hf}delivery
set run_at = run_at - :by, created_at = created_at - :by, claimed_at = claimed_at - :by,
    completed_at = completed_at - :by, lease_until = lease_until - :by, first_failed_at = first_failed_at - :by,
    discarded_at = discarded_at - :by;
update {hf}worker set started_at = started_at - :by, alive_until = alive_until - :by;
update {hf}consumer set blocked_until = blocked_until - :by, blocked_at = blocked_at - :by, paused_at = paused_at - :by;
update {hf}schedule set last_at = last_at - :by, next_at = next_at - :by, paused_at = paused_at - :by;
update {hf}alert set told_at = told_at - :by;
update {hf}seen set expires_at = expires_at - :by;
update {hf}endpoint
set previous_until = previous_until - :by, created_at = created_at - :by, disabled_at = disabled_at - :by;
update {hf}breaker
set open_until = open_until - :by, probe_until = probe_until - :by, changed_at = changed_at - :by,
    window_at = window_at - :by;
update {hf}idempotency
set reserved_at = reserved_at - :by, lease_until = lease_until - :by, completed_at = completed_at - :by,
    expires_at = expires_at - :by;
update {hf}idempotency_lease set lease_until = lease_until - :by;
update {hf}workflow_run
set started_at = started_at - :by, ended_at = ended_at - :by, deadline = deadline - :by;
update {hf}workflow_step set wake_at = wake_at - :by, done_at = done_at - :by;
update {hf}workflow_signal set sent_at = sent_at - :by;
update {hf}result set stored_at = stored_at - :by, expires_at = expires_at - :by;
update {hf}progress set reported_at = reported_at - :by;
update {hf}job_group set created_at = created_at - :by, cancelled_at = cancelled_at - :by;
update {hf}job_group_member set decided_at = decided_at - :by where decided_at is not null;
update {hf}message set occurred_at = occurred_at - :by

-- name: abandon
-- Takes a delivery away from its owner.
update {hf}delivery
set status = 'pending', fence = fence + 1, run_at = {now}, lease_until = null, locked_by = null
where id = :delivery_id and status = 'in_flight'

-- name: orphan
-- Assigns an in-flight delivery to a worker that does not exist.
update {hf}delivery
set locked_by = 'gone', lease_until = {now} - 1000
where id = :delivery_id and status = 'in_flight'

-- name: drop_schema
-- Does nothing: tests delete the file.
select 1
