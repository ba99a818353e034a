-- name: failing_runs
-- The generations of the first failing run of the oldest dead letter in each group and of the last run of the
-- newest one, with its trace. A replay starts a new cycle: runs before the first failure of this cycle do not count.
-- all: kinds
select k.n,
  (select r.generation from {hf}run r
   where r.delivery_id = coalesce(k.oldest, k.example)
     and r.completed_at >= coalesce((select d.first_failed_at from {hf}delivery d where d.id = k.oldest), r.completed_at)
   order by r.fence limit 1),
  (select r.generation from {hf}run r where r.delivery_id = k.example and r.error_type is not null
   order by r.fence desc limit 1),
  (select r.trace from {hf}run r where r.delivery_id = k.example and r.error_type is not null
   order by r.fence desc limit 1)
from (
  select json_extract(j.value, '$[0]') as n, json_extract(j.value, '$[3]') as example, (
    select d.id from {hf}delivery d
    where d.status = 'failed' and d.discarded_at is null
      and d.fingerprint = json_extract(j.value, '$[1]') and d.consumer = json_extract(j.value, '$[2]')
    order by d.fingerprint, d.consumer, d.completed_at limit 1) as oldest
  from json_each(:rows) j) k
