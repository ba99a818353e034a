-- fragment: claimed
u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
u.holds, u.expiries, u.suspect, u.run_at, u.retry::text, m.type, m.source, m.key,
case when octet_length(m.text) <= 65536 then m.text else '' end,
m.headers::text, m.occurred_at, m.generation

-- fragment: with_message
cross join lateral (
  select m.*, case when pg_column_size(m.payload) <= 65536 then m.payload::text end as text
  from {hf}message m where m.id = u.message_id offset 0) m

-- fragment: not_suspect
not d.suspect
-- fragment: suspect
d.suspect

-- name: lanes
-- The lanes with pending deliveries that this worker may claim, by a loose index scan: cost grows with lanes, not rows.
-- The fifth column is true if the consumer was blocked and its pause is over, so that one delivery may be tried. The
-- last ones are the flow control of the consumer and the queue.
{lane}
select l.queue, l.consumer, l.generation, l.priority, c.blocked_until is not null,
       c.flow, c.flow_override, q.flow, q.flow_override
from lane l
{runnable}
order by l.priority, l.queue, l.consumer, l.generation

-- name: lanes_above
-- As `lanes`, but each known lane is read from its floor, so that the dead rows of an old snapshot are not read again.
-- The rows of the second part are floors for the next time: of all lanes, also those that this worker does not serve.
-- Unknown lanes are searched between a known one and the next, one range for each column: before version 18, PostgreSQL
-- does not end a scan at `(queue, consumer, generation, priority) < (...)`, but reads the dead rows of the next lane.
{lane_above}
select l.queue, l.consumer, l.generation, l.priority, c.blocked_until is not null,
       c.flow, c.flow_override, q.flow, q.flow_override, null::timestamptz as floor_at
from lane l
{runnable}
union all
select h.queue, h.consumer, h.generation, h.priority, null, null, null, null, null, h.floor_at from head h

-- fragment: lane
with recursive lane as (
  (select d.queue, d.consumer, d.generation, d.priority, '-infinity'::timestamptz as floor_at from {hf}delivery d
   where d.status = 'pending' and {suspicion}
   order by d.queue, d.consumer, d.generation, d.priority limit 1)
  union all
  select n.queue, n.consumer, n.generation, n.priority, '-infinity'
  from lane l cross join lateral (
    select d.queue, d.consumer, d.generation, d.priority from {hf}delivery d
    where d.status = 'pending' and {suspicion}
      and (d.queue, d.consumer, d.generation, d.priority) > (l.queue, l.consumer, l.generation, l.priority)
    order by d.queue, d.consumer, d.generation, d.priority limit 1) n)

-- fragment: lane_above
with recursive known as materialized (
  select g.queue, g.consumer, g.generation, g.priority, g.floor_at,
         lead(g.queue) over w as to_queue, lead(g.consumer) over w as to_consumer,
         lead(g.generation) over w as to_generation, lead(g.priority) over w as to_priority
  from unnest(:known_queue::text[], :known_consumer::text[], :known_generation::bigint[], :known_priority::smallint[],
              :known_at::timestamptz[]) g (queue, consumer, generation, priority, floor_at)
  window w as (order by g.queue, g.consumer, g.generation, g.priority)),
unknown as (
  select k.queue, k.consumer, k.generation, k.priority, null::timestamptz as run_at,
         k.to_queue, k.to_consumer, k.to_generation, k.to_priority
  from known k
  union all
  select n.queue, n.consumer, n.generation, n.priority, n.run_at,
         p.to_queue, p.to_consumer, p.to_generation, p.to_priority
  from unknown p cross join lateral (
    select * from (
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and p.to_queue is null
         and (d.queue, d.consumer, d.generation, d.priority) > (p.queue, p.consumer, p.generation, p.priority)
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and p.to_queue <> p.queue
         and (d.queue, d.consumer, d.generation, d.priority) > (p.queue, p.consumer, p.generation, p.priority)
         and d.queue < p.to_queue
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and p.to_queue = p.queue and p.to_consumer <> p.consumer
         and d.queue = p.queue and (d.consumer, d.generation, d.priority) > (p.consumer, p.generation, p.priority)
         and d.consumer < p.to_consumer
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and (p.to_queue, p.to_consumer) = (p.queue, p.consumer) and p.to_generation <> p.generation
         and d.queue = p.queue and d.consumer = p.consumer
         and (d.generation, d.priority) > (p.generation, p.priority) and d.generation < p.to_generation
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and (p.to_queue, p.to_consumer, p.to_generation) = (p.queue, p.consumer, p.generation)
         and d.queue = p.queue and d.consumer = p.consumer and d.generation = p.generation
         and d.priority > p.priority and d.priority < p.to_priority
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and p.to_queue <> p.queue
         and d.queue = p.to_queue and d.consumer < p.to_consumer
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and (p.to_queue, p.to_consumer) <> (p.queue, p.consumer)
         and d.queue = p.to_queue and d.consumer = p.to_consumer and d.generation < p.to_generation
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)
      union all
      (select d.queue, d.consumer, d.generation, d.priority, d.run_at from {hf}delivery d
       where d.status = 'pending' and {suspicion} and (p.to_queue, p.to_consumer, p.to_generation) <> (p.queue, p.consumer, p.generation)
         and d.queue = p.to_queue and d.consumer = p.to_consumer and d.generation = p.to_generation
         and d.priority < p.to_priority
       order by d.queue, d.consumer, d.generation, d.priority, d.run_at limit 1)) s
    limit 1) n),
head as materialized (
  select k.queue, k.consumer, k.generation, k.priority, least(h.run_at, now()) as floor_at, h.run_at is not null as is_live
  from known k left join lateral (
    select d.run_at from {hf}delivery d
    where d.status = 'pending' and {suspicion}
      and d.queue = k.queue and d.consumer = k.consumer and d.generation = k.generation and d.priority = k.priority
      and d.run_at >= k.floor_at
    order by d.run_at, d.id limit 1) h on true
  where k.queue <> ''
  union all
  select u.queue, u.consumer, u.generation, u.priority, least(u.run_at, now()), true from unknown u where u.run_at is not null),
lane as (select h.queue, h.consumer, h.generation, h.priority, h.floor_at from head h where h.is_live)

-- fragment: runnable
left join {hf}queue q on q.name = l.queue
left join {hf}consumer c on c.name = l.consumer
where q.paused_at is null and c.paused_at is null and {unheld}
  and (c.blocked_until is null or c.blocked_until <= now())
  and (:queues::text[] is null or l.queue = any (:queues::text[]))
  and l.consumer = any (:consumers::text[])
  and (l.generation = :generation::bigint
       or (l.generation < :generation::bigint and not exists (
             select 1 from {hf}worker w
             where w.alive_until > now() and w.generation = l.generation and l.consumer = any (w.consumers)
               and (w.queues = '{}' or l.queue = any (w.queues)))))

-- name: claim
-- Claims due deliveries of the given lanes, in their order; counts the attempt and increments the fence. `offset 0`
-- forces one lookup per message, also in a plan from a time when the table was empty. A large payload is not read,
-- because one claim could exceed the worker's memory: its stored size is known without reading it, the size of its
-- text only after decompression.
with c as materialized (
  select d.id
  from unnest(:queue::text[], :consumer::text[], :generation::bigint[], :priority::smallint[],
              :floor_at::timestamptz[], :floor_id::uuid[])
         l (queue, consumer, generation, priority, floor_at, floor_id)
  cross join lateral (
    select d.id from {hf}delivery d
    where d.status = 'pending' and {suspicion}
      and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
      and (d.run_at, d.id) >= (l.floor_at, l.floor_id) and d.run_at <= now()
    order by d.run_at, d.id limit {limit} for update skip locked) d
  where {unheld}
  limit {limit}),
u as (
  update {hf}delivery d
  {taken}
  where d.id = any (array(select c.id from c))
  returning d.*)
select {claimed} from u
{with_message}

-- name: discover_and_claim
-- Finds the lanes and claims from them in one statement, for an idle worker, where latency matters.
{found_lanes},
found as materialized (
  select l.queue, l.consumer, l.generation, l.priority, l.floor_at from lane l
  {runnable}
  and c.blocked_until is null and c.flow is null and q.flow is null
  order by l.priority, l.queue, l.consumer, l.generation),
c as materialized (
  select d.id
  from found l
  cross join lateral (
    select d.id from {hf}delivery d
    where d.status = 'pending' and {suspicion}
      and d.queue = l.queue and d.consumer = l.consumer and d.generation = l.generation and d.priority = l.priority
      and d.run_at >= l.floor_at and d.run_at <= now()
    order by d.run_at, d.id limit {limit} for update skip locked) d
  limit {limit}),
u as (
  update {hf}delivery d
  {taken}
  where d.id = any (array(select c.id from c))
  returning d.*)
select {claimed} from u
{with_message}

-- fragment: taken
set status = 'in_flight', attempts = d.attempts + 1, fence = d.fence + 1, claimed_at = now(),
    lease_until = now() + :lease::interval, locked_by = :worker::text

-- name: lock_trial
-- Locks a consumer whose pause is over, unless another worker has locked it for a trial.
select c.name from {hf}consumer c
where c.name = :name::text and c.blocked_until <= now() for update skip locked

-- name: start_trial
-- Prevents trials by other workers while one delivery of the consumer runs.
update {hf}consumer set blocked_until = now() + :delay::interval where name = :name::text

-- name: rescue
-- Claims deliveries whose lease and worker lease have both expired; counts no attempt and reads no payload.
with c as materialized (
  select d.id from {hf}delivery d
  left join {hf}worker w on w.id = d.locked_by
  where d.status = 'in_flight' and d.lease_until < now() and coalesce(w.alive_until < now(), true)
  limit {limit} for update of d skip locked),
u as (
  update {hf}delivery d
  set fence = d.fence + 1, lease_until = now() + :lease::interval, locked_by = :worker::text
  where d.id = any (array(select c.id from c))
  returning d.*)
select {claimed}, coalesce(u.retry, k.retry)::text
from u cross join lateral (select m.*, null::text as text from {hf}message m where m.id = u.message_id) m
left join {hf}consumer k on k.name = u.consumer

-- name: next_expiry
-- The expiry of the next lease: of another live worker, or of a delivery whose worker is dead or unknown.
select extract(epoch from least(
  (select min(w.alive_until) from {hf}worker w where w.alive_until >= now() and w.id <> :worker::text),
  (select min(d.lease_until) from {hf}delivery d
   where d.status = 'in_flight'
     and not exists (select 1 from {hf}worker w where w.id = d.locked_by and w.alive_until >= now()))) - now())

-- name: held_claims
-- The claims that a worker holds in the store; the reply to a claim may have been lost.
select d.id, d.fence from {hf}delivery d where d.status = 'in_flight' and d.locked_by = :worker::text

-- name: payload
-- The payload of a claimed delivery that was too large for the claim.
select m.payload::text from {hf}message m where m.id = :message_id::uuid
