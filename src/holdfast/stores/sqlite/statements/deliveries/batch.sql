-- name: batch_lanes
-- The lanes of these consumers, with the number of due deliveries up to a limit and the age of the oldest in seconds.
{lane}
select l.queue, l.consumer, l.generation, l.priority,
  (select count(*) from (
     select 1 from {hf}delivery d
     where d.status = 'pending' and not d.suspect
       and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
       and d.run_at <= {now}
     order by d.run_at, d.id limit :limit)),
  ({now} - (
     select d.run_at from {hf}delivery d
     where d.status = 'pending' and not d.suspect
       and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
     order by d.run_at, d.id limit 1)) / 1000.0
from head join {hf}delivery l on l.rowid = head.row
{runnable}
and c.blocked_until is null
order by l.priority, l.queue, l.consumer, l.generation

-- name: claim_batch
-- Claims a batch of one lane if it is complete, or if its oldest delivery has been due for long enough. An item whose
-- next run may be its last counts the batch as an expired lease: after a crash it is suspect and runs alone, so that the
-- item that crashes the worker does not use up the attempts of the others.
-- once
with c as materialized (
  select d.id, d.run_at from {hf}delivery d
  where d.status = 'pending' and not d.suspect
    and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority
    and d.run_at <= {now}
  order by d.run_at, d.id limit :limit)
update {hf}delivery
{taken},
    expiries = case
      when (select count(*) from c) > 1
        and coalesce(max_attempts, :attempts) - attempts <= 2
      then max(expiries, 1) else expiries end
where id in (
  select c.id from c
  where (select count(*) >= :limit or min(g.run_at) <= {now} - :within from c g))
returning id;
-- all: returned
select {claimed} from json_each(:rows) r join {hf}delivery u on u.id = r.value {with_message}

-- name: complete_batch
-- Marks the claims of a batch delivered in the caller's transaction, or raises and rolls it back.
-- all: claims
insert into {hf}complete (delivery_id, fence, worker)
select json_extract(s.value, '$[0]'), json_extract(s.value, '$[1]'), :worker from json_each(:rows) s
