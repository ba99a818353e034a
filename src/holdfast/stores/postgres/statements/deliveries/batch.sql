-- name: batch_lanes
-- The lanes of these consumers, with the number of due deliveries up to a limit and the age of the oldest in seconds.
{lane}
select l.queue, l.consumer, l.generation, l.priority, b.due, extract(epoch from now() - b.oldest)
from lane l
cross join lateral (
  select count(*) as due, min(d.run_at) as oldest
  from (select d.run_at from {hf}delivery d
        where d.status = 'pending' and not d.suspect
          and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
          and d.run_at <= now()
        order by d.run_at, d.id limit {limit}) d) b
{runnable}
and c.blocked_until is null
order by l.priority, l.queue, l.consumer, l.generation

-- name: claim_batch
-- Claims a batch of one lane if it is complete, or if its oldest delivery has been due for long enough. The locked rows
-- decide: another worker may have taken the rest of a batch that was complete when it was counted. An item whose next
-- run may be its last counts the batch as an expired lease: after a crash it is suspect and runs alone, so that the item
-- that crashes the worker does not use up the attempts of the others.
with c as materialized (
  select d.id, d.run_at from {hf}delivery d
  where d.status = 'pending' and not d.suspect
    and d.queue = :queue::text and d.consumer = :consumer::text and d.generation = :generation::bigint
    and d.priority = :priority::smallint
    and (d.run_at, d.id) >= (:floor_at::timestamptz, :floor_id::uuid) and d.run_at <= now()
  order by d.run_at, d.id limit {limit} for update skip locked),
u as (
  update {hf}delivery d
  {taken},
      expiries = case
        when (select count(*) from c) > 1
          and coalesce(d.max_attempts, :attempts::integer) - d.attempts <= 2
        then greatest(d.expiries, 1) else d.expiries end
  where d.id = any (array(
    select c.id from c
    where (select count(*) >= {limit} or min(g.run_at) <= now() - :within::interval from c g)))
  returning d.*)
select {claimed} from u
{with_message}

-- name: complete_batch
-- Marks the claims of a batch delivered in the caller's transaction, or raises and aborts it.
select {hf}complete(s.delivery_id, s.fence, :worker::text, :idle_timeout_ms::bigint)
from (select s.delivery_id, s.fence from unnest(:delivery_id::uuid[], :fence::bigint[]) s (delivery_id, fence)
      order by s.delivery_id) s
