-- fragment: claimed
u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
u.holds, u.expiries, u.suspect, u.run_at, u.retry, m.type, m.source, m.key,
coalesce(m.text, ''),
m.headers, m.occurred_at, m.generation

-- fragment: with_message
join (select m.*, case when length(m.payload) <= 65536 then m.payload end as text from {hf}message m) m
  on m.id = u.message_id

-- fragment: not_suspect
not d.suspect
-- fragment: suspect
d.suspect

-- name: lanes
-- The lanes with pending deliveries that this worker may claim, by a loose index scan: cost grows with lanes, not rows.
-- The fifth column is true if the consumer was blocked and its pause is over, so that one delivery may be tried. The
-- last ones are the flow control of the consumer and the queue.
-- Four probes replace one comparison of rows, for which SQLite would use only the first column.
{lane}
select l.queue, l.consumer, l.generation, l.priority, c.blocked_until is not null,
       c.flow, c.flow_override, q.flow, q.flow_override
from head join {hf}delivery l on l.rowid = head.row
{runnable}
order by l.priority, l.queue, l.consumer, l.generation

-- name: lanes_above
-- As `lanes`, with the current time as a floor of each lane: SQLite removes the index entries of claimed rows at once.
{lane_above}
select l.queue, l.consumer, l.generation, l.priority, c.blocked_until is not null,
       c.flow, c.flow_override, q.flow, q.flow_override, null as floor_at
from head join {hf}delivery l on l.rowid = head.row
{runnable}
union all
select l.queue, l.consumer, l.generation, l.priority, null, null, null, null, null, min(l.run_at, {now})
from head join {hf}delivery l on l.rowid = head.row

-- fragment: lane_above
{lane}

-- fragment: lane
with recursive head(row) as (
  select (select d.rowid from {hf}delivery d where d.status = 'pending' and {suspicion}
          order by d.queue, d.consumer, d.generation, d.priority limit 1)
  union all
  select coalesce(
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and {suspicion} and d.queue = l.queue and d.consumer = l.consumer
       and d.generation = l.generation and d.priority > l.priority
     order by d.priority limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and {suspicion} and d.queue = l.queue and d.consumer = l.consumer
       and d.generation > l.generation
     order by d.generation, d.priority limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and {suspicion} and d.queue = l.queue and d.consumer > l.consumer
     order by d.consumer, d.generation, d.priority limit 1),
    (select d.rowid from {hf}delivery d
     where d.status = 'pending' and {suspicion} and d.queue > l.queue
     order by d.queue, d.consumer, d.generation, d.priority limit 1))
  from head join {hf}delivery l on l.rowid = head.row)

-- fragment: runnable
left join {hf}queue q on q.name = l.queue
left join {hf}consumer c on c.name = l.consumer
where q.paused_at is null and c.paused_at is null and {unheld}
  and (c.blocked_until is null or c.blocked_until <= {now})
  and (:queues is null or l.queue in (select value from json_each(:queues)))
  and l.consumer in (select value from json_each(:consumers))
  and (l.generation = :generation
       or (l.generation < :generation and not exists (
             select 1 from {hf}worker w
             where w.alive_until > {now} and w.generation = l.generation
               and l.consumer in (select value from json_each(w.consumers))
               and (w.queues = '[]' or l.queue in (select value from json_each(w.queues))))))

-- name: claim
-- Claims due deliveries of the given lanes, in their order; counts the attempt and increments the fence. A large payload
-- is not read, because one claim could exceed the worker's memory.
-- each: lanes
update {hf}delivery
{taken}
where id in (
  select d.id from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority
    and d.run_at <= {now}
    and :consumer not in (select p.name from {hf}projector p where p.held_until > {now})
  order by d.run_at, d.id limit :limit)
returning id;
-- all: returned
select {claimed} from json_each(:rows) r join {hf}delivery u on u.id = r.value {with_message}

-- name: discover_and_claim
-- Finds the lanes and claims from them in one statement, for an idle worker, where latency matters.
-- once
update {hf}delivery
{taken}
where id in (
  {found_lanes},
  found as (
    select l.queue, l.consumer, l.generation, l.priority
    from head join {hf}delivery l on l.rowid = head.row
    {runnable}
    and c.blocked_until is null and c.flow is null and q.flow is null)
  select t.id from found l cross join {hf}delivery t
  where t.rowid in (
    select d.rowid from {hf}delivery d
    where d.status = 'pending' and {suspicion}
      and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
      and d.run_at <= {now}
    order by d.run_at, d.id limit :limit)
  order by l.priority, l.queue, l.consumer, l.generation, t.run_at, t.id limit :limit)
returning id;
-- all: returned
select {claimed} from json_each(:rows) r join {hf}delivery u on u.id = r.value {with_message}

-- fragment: taken
set status = 'in_flight', attempts = attempts + 1, fence = fence + 1, claimed_at = {now},
    lease_until = {now} + :lease, locked_by = :worker

-- name: lock_trial
-- Locks a consumer whose pause is over, unless another worker has locked it for a trial.
select c.name from {hf}consumer c where c.name = :name and c.blocked_until <= {now}

-- name: start_trial
-- Prevents trials by other workers while one delivery of the consumer runs.
update {hf}consumer set blocked_until = {now} + :delay where name = :name

-- name: rescue
-- Claims deliveries whose lease and worker lease have both expired; counts no attempt and reads no payload.
-- once
update {hf}delivery
set fence = fence + 1, lease_until = {now} + :lease, locked_by = :worker
where id in (
  select d.id from {hf}delivery d
  left join {hf}worker w on w.id = d.locked_by
  where d.status = 'in_flight' and d.lease_until < {now} and coalesce(w.alive_until < {now}, 1)
  limit :limit)
returning id;
-- each: returned
select {claimed}, coalesce(u.retry, k.retry)
from {hf}delivery u join (select m.*, null as text from {hf}message m) m on m.id = u.message_id
left join {hf}consumer k on k.name = u.consumer
where u.id = :id

-- name: next_expiry
-- The expiry of the next lease: of another live worker, or of a delivery whose worker is dead or unknown.
select (min(e.at) - {now}) / 1000.0 from (
  select min(w.alive_until) as at from {hf}worker w where w.alive_until >= {now} and w.id <> :worker
  union all
  select min(d.lease_until) from {hf}delivery d
  where d.status = 'in_flight'
    and not exists (select 1 from {hf}worker w where w.id = d.locked_by and w.alive_until >= {now})) e

-- name: held_claims
-- The claims that a worker holds in the store; the reply to a claim may have been lost.
select d.id, d.fence from {hf}delivery d where d.status = 'in_flight' and d.locked_by = :worker

-- name: payload
-- The payload of a claimed delivery that was too large for the claim.
select m.payload from {hf}message m where m.id = :message_id
