-- name: failing_runs
-- The generations of the first failing run of the oldest dead letter in each group and of the last run of the
-- newest one, with its trace. A replay starts a new cycle: runs before the first failure of this cycle do not count.
select k.n, f.generation, l.generation, l.trace
from unnest(:n::bigint[], :fingerprint::text[], :consumer::text[], :example::uuid[])
       k (n, fingerprint, consumer, example)
left join lateral (
  select d.id, d.first_failed_at from {hf}delivery d
  where d.status = 'failed' and d.discarded_at is null and d.fingerprint = k.fingerprint and d.consumer = k.consumer
  order by d.fingerprint, d.consumer, d.completed_at limit 1) o on true
left join lateral (
  select r.generation from {hf}run r
  where r.delivery_id = coalesce(o.id, k.example) and r.completed_at >= coalesce(o.first_failed_at, r.completed_at)
  order by r.fence limit 1) f on true
left join lateral (
  select r.generation, r.trace from {hf}run r
  where r.delivery_id = k.example and r.error_type is not null
  order by r.fence desc limit 1) l on true
