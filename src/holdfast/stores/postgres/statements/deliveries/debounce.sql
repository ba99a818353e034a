-- name: claim_debounced
-- Claims the newest delivery of each key that is quiet or has waited long enough, and discards the older ones
-- as superseded. Until then the oldest delivery is due again when the longest wait ends. A key with a delivery in
-- flight, or that is paused, is blocked. At most 1,000 deliveries are discarded at once; a key runs only when nothing
-- older is left to run after it, and only when every due delivery has its key. The last row has no delivery: it has the number of other changes and of deliveries
-- without a key. `case` makes the planner hash these lists: it expects few rows, and would compare each with each.
with w as materialized (
  select d.id, d.flow_key, d.flow_seq, d.run_at from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = :queue::text and d.consumer = :consumer::text and d.generation = :generation::bigint
    and d.priority = :priority::smallint and d.run_at <= now()
  order by d.run_at, d.id limit 1000),
g as materialized (
  select w.flow_key as key, min(w.run_at) as due, {debounce_blocked} as blocked
  from w where w.flow_key is not null and w.flow_seq is not null group by w.flow_key),
k as materialized (
  select g.key, g.blocked, n.id, n.flow_seq as newest, n.run_at, n.quiet_at, o.id as oldest_id, o.flow_seq as oldest,
         o.created_at + :max_wait::interval as latest,
         not g.blocked and n.may_run and {debounce_adopted}
           and (greatest(n.run_at, n.quiet_at) <= now() or o.created_at + :max_wait::interval <= now())
           as fire
  from (select * from (select g.* from g where not g.blocked order by g.due limit {limit}) free
        union all
        select * from (select g.* from g where g.blocked order by g.due limit 100) blocked) g
  cross join lateral (
    select d.id, d.flow_seq, d.run_at, d.created_at + :debounce::interval as quiet_at, {suspicion} as may_run
    from {hf}delivery d where {debounce_own} and d.flow_key = g.key order by d.flow_seq desc limit 1) n
  cross join lateral (
    select d.id, d.flow_seq, d.created_at
    from {hf}delivery d where {debounce_own} and d.flow_key = g.key order by d.flow_seq limit 1) o),
m as materialized (
  select d.id, k.id as by_id
  from k cross join lateral (
    select d.id from {hf}delivery d
    where {debounce_own} and d.flow_key = k.key and d.flow_seq > k.oldest and d.flow_seq < k.newest
      and (k.fire or d.run_at <= now())
    order by d.flow_seq limit 1000) d
  limit 1000),
l as materialized (
  select d.id from {hf}delivery d
  where d.id = any (array(
      select m.id from m union all select k.id from k union all select k.oldest_id from k)) and d.status = 'pending'
  for update skip locked),
f as materialized (
  select m.id, m.by_id from m where case when m.id in (select l.id from l) then true end),
c as materialized (
  select k.key, k.id, k.oldest_id from k
  where k.fire and case when k.id in (select l.id from l) then k.oldest_id in (select l.id from l) end
    and not exists (
      select from {hf}delivery d
      where {debounce_own} and d.flow_key = k.key and d.flow_seq > k.oldest and d.flow_seq < k.newest
        and d.id not in (select f.id from f))),
a as materialized (
  select c.id, 'run' as action, null::uuid as by_id, null::timestamptz as at from c
  union all
  select f.id, 'discard', f.by_id, null from f
  union all
  select c.oldest_id, 'discard', c.id, null from c where c.oldest_id <> c.id
  union all
  select k.oldest_id, 'wait', null, k.latest
  from k
  where case when k.oldest_id in (select l.id from l) then k.oldest_id in (select w.id from w) end
    and not k.fire and not k.blocked and k.oldest < k.newest and k.latest > now()
  union all
  select k.id, 'wait', null, k.quiet_at
  from k
  where case when k.id in (select l.id from l) then k.id in (select w.id from w) end
    and not k.fire and not k.blocked and k.quiet_at > now()
  union all
  select l.id, 'wait', null, now() + interval '1 s'
  from k join l on l.id in (k.id, k.oldest_id) join w on w.id = l.id
  where k.blocked and (select count(*) from w) >= 1000
  group by l.id),
u as (
  update {hf}delivery d
  set status = case a.action when 'run' then 'in_flight' when 'discard' then 'failed' else d.status end,
      attempts = d.attempts + (a.action = 'run')::integer, fence = d.fence + (a.action <> 'wait')::integer,
      claimed_at = case when a.action = 'run' then now() else d.claimed_at end,
      lease_until = case when a.action = 'run' then now() + :lease::interval end,
      locked_by = case when a.action = 'run' then :worker::text end,
      flow_ticket = case when a.action = 'run' then nextval('{hf}flow_ticket') else d.flow_ticket end,
      run_at = case when a.action = 'wait' then a.at else d.run_at end,
      completed_at = case when a.action = 'discard' then now() end,
      discarded_at = case when a.action = 'discard' then now() end,
      error_type = case when a.action = 'discard' then 'superseded' else d.error_type end,
      last_error = case when a.action = 'discard' then 'superseded by ' || a.by_id else d.last_error end
  from a
  where d.id = any (array[a.id]) and d.status = 'pending'
  returning d.*)
select u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
       u.holds, u.expiries, u.suspect, u.run_at, u.retry::text, u.flow_key, null::bigint, null::bigint
from u where u.status = 'in_flight'
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       (select count(*) from u where u.status <> 'in_flight'),
       (select count(*) from w where w.flow_key is null or w.flow_seq is null)

-- fragment: debounce_adopted
not exists (select from w where w.flow_key is null or w.flow_seq is null)

-- fragment: debounce_own
d.status = 'pending' and d.flow_seq is not null and d.consumer = :consumer::text

-- fragment: debounce_blocked
(exists (
   select from {hf}delivery f
   where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer::text and f.flow_key = w.flow_key)
 or exists (
   select from {hf}flow_pause p where p.consumer = :consumer::text and p.flow_key = w.flow_key))
