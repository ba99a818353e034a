-- name: report_progress
-- Stores what runs reported, unless a later run owns the delivery or it is delivered. Of two writers the later run wins.
-- each: reports
insert into {hf}progress (delivery_id, fence, fraction, note)
select d.id, d.fence, :fraction, :note
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.status <> 'delivered'
on conflict (delivery_id) do update
set fence = excluded.fence, fraction = excluded.fraction, note = excluded.note, reported_at = {now}
where fence <= excluded.fence

-- name: forget_progress
-- Removes the progress of runs that were delivered.
-- each: runs
delete from {hf}progress where delivery_id = :delivery_id and fence = :fence

-- name: prune_progress
-- Removes a batch of rows that no reader returns: a worker that died could not.
delete from {hf}progress
where delivery_id in (
  select o.delivery_id from {hf}progress o
  where not exists (
    select 1 from {hf}delivery d where d.id = o.delivery_id and d.fence = o.fence and d.status <> 'delivered')
  limit :limit)
returning delivery_id

-- name: progress_of
-- What the last run of a delivery reported, unless it is delivered.
select p.fraction, p.note, p.reported_at
from {hf}progress p join {hf}delivery d on d.id = p.delivery_id and d.fence = p.fence
where p.delivery_id = :delivery_id and d.status <> 'delivered'
