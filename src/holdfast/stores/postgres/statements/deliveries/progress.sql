-- name: report_progress
-- Stores what runs reported, unless a later run owns the delivery or it is delivered. Of two writers the later run wins.
insert into {hf}progress as p (delivery_id, fence, fraction, note)
select d.id, d.fence, s.fraction, s.note
from unnest(:delivery_id::uuid[], :fence::bigint[], :fraction::double precision[], :note::text[])
       s (delivery_id, fence, fraction, note)
join {hf}delivery d on d.id = any (array[s.delivery_id]) and d.fence = s.fence and d.status <> 'delivered'
on conflict (delivery_id) do update
set fence = excluded.fence, fraction = excluded.fraction, note = excluded.note, reported_at = now()
where p.fence <= excluded.fence

-- name: forget_progress
-- Removes the progress of runs that were delivered.
delete from {hf}progress p
using unnest(:delivery_id::uuid[], :fence::bigint[]) s (delivery_id, fence)
where p.delivery_id = s.delivery_id and p.fence = s.fence

-- name: prune_progress
-- Removes a batch of rows that no reader returns: a worker that died could not.
delete from {hf}progress p
where p.delivery_id = any (array(
  select o.delivery_id from {hf}progress o
  where not exists (
    select 1 from {hf}delivery d
    where d.id = o.delivery_id and d.fence = o.fence and d.status <> 'delivered' offset 0)
  limit {limit} for update skip locked))
returning p.delivery_id

-- name: progress_of
-- What the last run of a delivery reported, unless it is delivered.
select p.fraction, p.note, p.reported_at
from {hf}progress p join {hf}delivery d on d.id = p.delivery_id and d.fence = p.fence
where p.delivery_id = :delivery_id::uuid and d.status <> 'delivered'
