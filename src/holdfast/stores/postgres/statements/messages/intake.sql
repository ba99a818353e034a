-- name: settle_new
-- Writes the outcome of a direct run in the transaction that stores its delivery, after the run.
with u as (
  update {hf}delivery d
  set status = :status::text, attempts = 1 - :returned::integer, holds = :held::integer,
      run_at = case when :status::text = 'pending'
                    then coalesce(:until::timestamptz, now() + :delay::interval, d.run_at) else d.run_at end,
      claimed_at = now(), completed_at = case when :status::text = 'failed' then now() end,
      discarded_at = case when :discarded::boolean then now() end,
      last_error = :error::text, error_type = :error_type::text, fingerprint = :fingerprint::text,
      failed_type = case when :status::text = 'failed'
                         then (select m.type from {hf}message m where m.id = d.message_id) end,
      first_failed_at = case when :failure::boolean then now() end
  where d.id = :delivery_id::uuid and d.status = 'pending' and d.fence = 0
  returning d.id, d.consumer),
r as (
  insert into {hf}run (delivery_id, fence, attempt, outcome, error_type, error, trace, worker, started_at, detail,
                      consumer, generation)
  select u.id, 0, 1, :outcome::text, :error_type::text, :error::text, :trace::text, :worker::text,
         now() - coalesce(:elapsed::interval, interval '0'), :detail::text, u.consumer,
         (select w.generation from {hf}worker w where w.id = :worker::text)
  from u where :keep_run::boolean)
select u.id from u

-- name: was_handled
-- Whether the inbox records that a consumer has handled a key.
select 1 from {hf}handled h where h.source = :source::text and h.key = :key::text and h.consumer = :consumer::text

-- name: forget_handled
-- Removes a batch of keys that these consumers handled long ago, oldest first.
delete from {hf}handled f
using (
  select h.source, h.key, h.consumer from {hf}handled h
  where h.handled_at < now() - :older_than::interval and h.consumer = any (:consumers::text[])
  order by h.handled_at limit {limit}) old
where f.source = old.source and f.key = old.key and f.consumer = old.consumer
returning f.key

-- name: readiness
-- Whether a consumer or its queue is paused or blocked, and its waiting deliveries, counted up to a limit.
-- A consumer whose pause is over stays blocked while it has a waiting delivery for a trial.
select exists (select 1 from {hf}consumer c
               where c.name = :consumer::text and (c.paused_at is not null or c.blocked_until > now()
                 or (c.blocked_until is not null and exists (
                       select 1 from {hf}delivery d
                       where d.queue = :queue::text and d.consumer = c.name and d.status = 'pending' and not d.suspect))))
         or exists (select 1 from {hf}queue q where q.name = :queue::text and q.paused_at is not null),
       (select count(*) from (select 1 from {hf}delivery d
                              where d.queue = :queue::text and d.consumer = :consumer::text and d.status = 'pending'
                                and not d.suspect
                              limit {limit}) waiting)

-- name: report_intake
-- Records the state of an intake.
insert into {hf}intake (consumer, source, direct, waiting, unacknowledged, problem)
values (:consumer::text, :source::text, :direct::boolean, :waiting::bigint, :unacknowledged::bigint, :problem::text)
on conflict (consumer) do update
set source = excluded.source, direct = excluded.direct, waiting = excluded.waiting,
    unacknowledged = excluded.unacknowledged, problem = excluded.problem, reported_at = now()

-- name: intakes
-- The last reported state of all intakes.
select i.consumer, i.source, i.direct, i.waiting, i.unacknowledged, i.problem, i.reported_at
from {hf}intake i order by i.consumer

-- name: forget_intake
-- Removes the reports of a retired consumer's intakes; returns their sources.
delete from {hf}intake where consumer = :consumer::text returning source
