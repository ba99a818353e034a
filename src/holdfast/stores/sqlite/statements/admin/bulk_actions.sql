-- name: count_matching
-- How many deliveries match, counted up to a bound.
select count(*) from (
  select d.id from {hf}delivery d join {hf}message m on m.id = d.message_id
  where true {where}
  limit :limit) c

-- fragment: where_after
and d.id > :after

-- fragment: where_type_below
and substr(m.type, 1, length(:type_prefix)) = :type_prefix

-- name: lock_deliveries
-- The given deliveries that are in one of these states; the write transaction locks them.
select d.id, d.fence
from {hf}delivery d
where d.id in (select value from json_each(:ids)) and d.status in (select value from json_each(:statuses))
order by d.id

-- name: current_states
-- The current states of the given deliveries, and who replayed each last.
select d.id, d.status, d.fence, d.discarded_at is not null,
       json_extract(d.failure_history, '$[#-1].replayed_by')
from {hf}delivery d where d.id in (select value from json_each(:ids))

-- name: steps_of_ended_runs
-- Those of the given deliveries that are steps of a run that has ended or is compensated: a worker would discard them.
select d.id from {hf}delivery d where d.id in (select value from json_each(:ids)) and {run_ended}

-- fragment: run_ended
exists (
  select 1 from {hf}workflow_run r
  where r.id = d.message_id and instr(d.consumer, r.name || '/') = 1
    and (r.status in ('done', 'cancelled', 'failed') or (r.status = 'compensating' and d.consumer not like '%:undo')))

-- name: queues
-- The queues that were paused or resumed; other queues have no row.
select q.name, q.paused_at from {hf}queue q order by q.name

-- name: find_messages
-- The messages with these ids.
select {message} from {hf}message m where m.id in (select value from json_each(:ids))

-- name: prunable_messages
-- The number of old messages that pruning would remove after the old deliveries.
select count(*) from {hf}message m
where m.id < :ceiling and m.occurred_at < {now} - :older_than
  and not exists (
    select 1 from {hf}delivery d
    where d.message_id = m.id and d.id between substr(m.id, 1, 18) || '-8000-000000000000'
                                          and substr(m.id, 1, 18) || '-bfff-ffffffffffff'
      and ({done}) is not true {unless})
  and not exists (
    select 1 from {hf}subscription s where s.retired_at is null and s.mark_position < m.position)
  and {relayed}
  and not exists (
    select 1 from {hf}workflow_run r
    where r.id = m.id and (r.ended_at is null or r.ended_at >= {now} - :older_than))

-- fragment: unless_set_aside
and ({set_aside}) is not true
