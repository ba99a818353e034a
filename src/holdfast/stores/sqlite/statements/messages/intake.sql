-- name: settle_new
-- Writes the outcome of a direct run in the transaction that stores its delivery, after the run.
-- once
update {hf}delivery
set status = :status, attempts = 1 - :returned, holds = :held,
    run_at = case when :status = 'pending' then coalesce(:until, {now} + :delay, run_at) else run_at end,
    claimed_at = {now}, completed_at = case when :status = 'failed' then {now} end,
    discarded_at = case when :discarded then {now} end,
    last_error = :error, error_type = :error_type, fingerprint = :fingerprint,
    failed_type = case when :status = 'failed' then (select m.type from {hf}message m where m.id = message_id) end,
    first_failed_at = case when :failure then {now} end
where id = :delivery_id and status = 'pending' and fence = 0
returning id, consumer, {now} as settled_at;
-- each: returned
insert into {hf}run (delivery_id, fence, attempt, outcome, error_type, error, trace, worker, started_at, completed_at,
                     detail, consumer, generation)
select :id, 0, 1, :outcome, :error_type, :error, :trace, :worker, :settled_at - coalesce(:elapsed, 0), :settled_at,
       :detail, :consumer, (select w.generation from {hf}worker w where w.id = :worker)
where :keep_run

-- name: was_handled
-- Whether the inbox records that a consumer has handled a key.
select 1 from {hf}handled h where h.source = :source and h.key = :key and h.consumer = :consumer

-- name: forget_handled
-- Removes a batch of keys that these consumers handled long ago, oldest first.
delete from {hf}handled
where (source, key, consumer) in (
  select h.source, h.key, h.consumer from {hf}handled h
  where h.handled_at < {now} - :older_than and h.consumer in (select value from json_each(:consumers))
  order by h.handled_at limit :limit)
returning key

-- name: readiness
-- Whether a consumer or its queue is paused or blocked, and its waiting deliveries, counted up to a limit.
-- A consumer whose pause is over stays blocked while it has a waiting delivery for a trial.
select exists (select 1 from {hf}consumer c
               where c.name = :consumer and (c.paused_at is not null or c.blocked_until > {now}
                 or (c.blocked_until is not null and exists (
                       select 1 from {hf}delivery d
                       where d.queue = :queue and d.consumer = c.name and d.status = 'pending' and not d.suspect))))
         or exists (select 1 from {hf}queue q where q.name = :queue and q.paused_at is not null),
       (select count(*) from (select 1 from {hf}delivery d
                              where d.queue = :queue and d.consumer = :consumer and d.status = 'pending'
                                and not d.suspect
                              limit :limit))

-- name: report_intake
-- Records the state of an intake.
insert into {hf}intake (consumer, source, direct, waiting, unacknowledged, problem)
values (:consumer, :source, :direct, :waiting, :unacknowledged, :problem)
on conflict (consumer) do update
set source = excluded.source, direct = excluded.direct, waiting = excluded.waiting,
    unacknowledged = excluded.unacknowledged, problem = excluded.problem, reported_at = {now}

-- name: intakes
-- The last reported state of all intakes.
select i.consumer, i.source, i.direct, i.waiting, i.unacknowledged, i.problem, i.reported_at
from {hf}intake i order by i.consumer

-- name: forget_intake
-- Removes the reports of a retired consumer's intakes; returns their sources.
delete from {hf}intake where consumer = :consumer returning source
