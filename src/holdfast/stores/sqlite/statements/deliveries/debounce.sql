-- name: claim_debounced
-- Claims the newest delivery of each key that is quiet or has waited long enough, and discards the older ones
-- as superseded. Until then the oldest delivery is due again when the longest wait ends. A key with a delivery in
-- flight, or that is paused, is blocked. At most 1,000 deliveries are discarded at once; a key runs only when nothing
-- older is left to run after it, and only when every due delivery has its key. The last row has no delivery: it has the number of other changes and of deliveries
-- without a key.
-- once
with w as materialized (
  select d.rowid as row, d.flow_key, d.flow_seq, d.run_at from {hf}delivery d
  where d.status = 'pending' and {suspicion}
    and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority
    and d.run_at <= {now}
  order by d.run_at, d.id limit 1000),
g as materialized (
  select w.flow_key as key, min(w.run_at) as due, {debounce_blocked} as blocked
  from w where w.flow_key is not null and w.flow_seq is not null group by w.flow_key),
e as materialized (
  select g.key, g.blocked,
         (select d.rowid from {hf}delivery d where {debounce_own} and d.flow_key = g.key
          order by d.flow_seq desc limit 1) as newest_row,
         (select d.rowid from {hf}delivery d where {debounce_own} and d.flow_key = g.key
          order by d.flow_seq limit 1) as oldest_row
  from (select * from (select g.* from g where not g.blocked order by g.due limit :limit)
        union all
        select * from (select g.* from g where g.blocked order by g.due limit 100)) g),
k as materialized (
  select e.key, e.blocked, e.newest_row, e.oldest_row, d.id, d.flow_seq as newest, o.flow_seq as oldest,
         d.created_at + :debounce as quiet_at, o.created_at + :max_wait as latest,
         not e.blocked and {suspicion} and {debounce_adopted}
           and (max(d.run_at, d.created_at + :debounce) <= {now} or o.created_at + :max_wait <= {now}) as fire
  from e join {hf}delivery d on d.rowid = e.newest_row join {hf}delivery o on o.rowid = e.oldest_row),
m as materialized (
  select d.rowid as row, k.id as by_id
  from k cross join {hf}delivery d
  where {debounce_own} and d.flow_key = k.key and d.flow_seq > k.oldest and d.flow_seq < k.newest
    and (k.fire or d.run_at <= {now})
  limit 1000),
c as materialized (
  select k.key, k.id, k.newest_row, k.oldest_row from k
  where k.fire and not exists (
    select 1 from {hf}delivery d
    where {debounce_own} and d.flow_key = k.key and d.flow_seq > k.oldest and d.flow_seq < k.newest
      and d.rowid not in (select m.row from m))),
a as materialized (
  select c.newest_row as row, 'run' as action, null as by_id, null as at from c
  union all
  select m.row, 'discard', m.by_id, null from m
  union all
  select c.oldest_row, 'discard', c.id, null from c where c.oldest_row <> c.newest_row
  union all
  select k.oldest_row, 'wait', null, k.latest from k
  where not k.fire and not k.blocked and k.oldest < k.newest and k.latest > {now}
    and k.oldest_row in (select w.row from w)
  union all
  select k.newest_row, 'wait', null, k.quiet_at from k
  where not k.fire and not k.blocked and k.quiet_at > {now} and k.newest_row in (select w.row from w)
  union all
  select w.row, 'wait', null, {now} + 1000 from w
  where (select count(*) from w) >= 1000 and w.row in (
    select k.newest_row from k where k.blocked union select k.oldest_row from k where k.blocked))
update {hf}delivery as d
set status = case a.action when 'run' then 'in_flight' when 'discard' then 'failed' else d.status end,
    attempts = d.attempts + (a.action = 'run'), fence = d.fence + (a.action <> 'wait'),
    claimed_at = case when a.action = 'run' then {now} else d.claimed_at end,
    lease_until = case when a.action = 'run' then {now} + :lease end,
    locked_by = case when a.action = 'run' then :worker end,
    run_at = case when a.action = 'wait' then a.at else d.run_at end,
    completed_at = case when a.action = 'discard' then {now} end,
    discarded_at = case when a.action = 'discard' then {now} end,
    error_type = case when a.action = 'discard' then 'superseded' else d.error_type end,
    last_error = case when a.action = 'discard' then 'superseded by ' || a.by_id else d.last_error end
from a
where d.rowid = a.row and d.status = 'pending'
returning id;
-- all: returned
with changed as materialized (
  select u.* from json_each(:rows) j join {hf}delivery u on u.id = j.value)
select u.id, u.message_id, u.consumer, u.queue, u.priority, u.generation, u.attempts, u.max_attempts, u.fence,
       u.holds, u.expiries, u.suspect, u.run_at, u.retry, u.flow_key, null, null
from changed u where u.status = 'in_flight'
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       (select count(*) from changed u where u.status <> 'in_flight'),
       (select count(*) from (
          select 1 from {hf}delivery d
          where d.status = 'pending' and {suspicion}
            and d.queue = :queue and d.consumer = :consumer and d.generation = :generation and d.priority = :priority
            and d.run_at <= {now} and (d.flow_key is null or d.flow_seq is null)
          limit 1))

-- fragment: debounce_adopted
not exists (select 1 from w where w.flow_key is null or w.flow_seq is null)

-- fragment: debounce_own
d.status = 'pending' and d.flow_seq is not null and d.consumer = :consumer

-- fragment: debounce_blocked
(exists (
   select 1 from {hf}delivery f
   where f.status = 'in_flight' and f.flow_key is not null and f.consumer = :consumer and f.flow_key = w.flow_key)
 or exists (
   select 1 from {hf}flow_pause p where p.consumer = :consumer and p.flow_key = w.flow_key))
