-- name: count_matching
-- How many deliveries match, counted up to a bound.
select count(*) from (
  select d.id from {hf}delivery d join {hf}message m on m.id = d.message_id
  where true {where}
  limit {limit}) c

-- fragment: where_after
and d.id > :after::uuid

-- fragment: where_type_below
and starts_with(m.type, :type_prefix::text)

-- name: lock_deliveries
-- Locks the given deliveries that are in one of these states, until the commit.
select d.id, d.fence
from {hf}delivery d
where d.id = any (:ids::uuid[]) and d.status = any (:statuses::text[])
order by d.id for update of d

-- name: current_states
-- The current states of the given deliveries, and who replayed each last; locks nothing.
select d.id, d.status, d.fence, d.discarded_at is not null, d.failure_history -> -1 ->> 'replayed_by'
from {hf}delivery d where d.id = any (:ids::uuid[])

-- name: steps_of_ended_runs
-- Those of the given deliveries that are steps of a run that has ended or is compensated: a worker would discard them.
select d.id from {hf}delivery d where d.id = any (:ids::uuid[]) and {run_ended}

-- fragment: run_ended
exists (
  select 1 from {hf}workflow_run r
  where r.id = d.message_id and strpos(d.consumer, r.name || '/') = 1
    and (r.status in ('done', 'cancelled', 'failed') or (r.status = 'compensating' and d.consumer not like '%:undo'))
  offset 0)

-- name: queues
-- The queues that were paused or resumed; other queues have no row.
select q.name, q.paused_at from {hf}queue q order by q.name

-- name: find_messages
-- The messages with these ids.
select {message} from {hf}message m where m.id = any (:ids::uuid[])

-- name: prunable_messages
-- The number of old messages that pruning would remove after the old deliveries.
select count(*) from {hf}message m
where m.id < :ceiling::uuid and m.occurred_at < now() - :older_than::interval
  and not exists (
    select 1 from {hf}delivery d
    where d.message_id = m.id
      and d.id between (left(m.id::text, 18) || '-8000-000000000000')::uuid
                   and (left(m.id::text, 18) || '-bfff-ffffffffffff')::uuid
      and ({done}) is not true {unless})
  and not exists (
    select 1 from {hf}subscription s
    where s.retired_at is null and (s.mark_tx, s.mark_position) < (m.tx, m.position))
  and {relayed}
  and not exists (
    select 1 from {hf}workflow_run r
    where r.id = m.id and (r.ended_at is null or r.ended_at >= now() - :older_than::interval) offset 0)

-- fragment: unless_set_aside
and ({set_aside}) is not true
