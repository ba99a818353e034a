-- name: keep_results
-- Stores the results of claims that this transaction settled, each for as long as its handler keeps it. A replay replaces
-- the result of its delivery.
-- each: results
insert into {hf}result (delivery_id, message_id, consumer, fence, result, expires_at)
select d.id, d.message_id, d.consumer, d.fence, :result, {now} + :keep
from {hf}delivery d where d.id = :delivery_id and d.fence = :fence and d.status = 'delivered'
on conflict (delivery_id) do update
set fence = excluded.fence, result = excluded.result, stored_at = {now}, expires_at = excluded.expires_at

-- name: outcomes
-- How the deliveries of a message ended, with the results that are kept. A result stays when its delivery was pruned.
select d.id, d.consumer, d.queue, d.status, d.discarded_at is not null as discarded, d.error_type, d.last_error,
       r.result
from {hf}delivery d
left join {hf}result r on r.delivery_id = d.id and r.fence = d.fence and r.expires_at > {now}
where d.message_id = :message_id and d.id between :low and :high
union all
select r.delivery_id, r.consumer, null, 'delivered', 0, null, null, r.result
from {hf}result r
where r.message_id = :message_id and r.delivery_id between :low and :high and r.expires_at > {now}
  and not exists (select 1 from {hf}delivery d where d.id = r.delivery_id)

-- name: awaited_deliveries
-- The given deliveries that are pending or in flight.
select d.id from {hf}delivery d
where d.id in (select value from json_each(:ids)) and d.status in ('pending', 'in_flight')

-- name: result_of
-- The stored result of a delivery.
select r.result, r.stored_at, r.expires_at
from {hf}result r join {hf}delivery d on d.id = r.delivery_id and d.fence = r.fence
where r.delivery_id = :delivery_id and r.expires_at > {now}

-- name: forget_results
-- Removes a batch of expired results, except those of a group whose next job has not ended.
delete from {hf}result
where rowid in (
  select o.rowid from {hf}result o
  where o.expires_at < {now}
    and not exists (
      select 1 from {hf}job_group_member g
      join {hf}job_group_member w on w.group_id = g.group_id and w.stage = g.stage + 1
      join {hf}delivery n on n.id = w.delivery_id and n.status in ('pending', 'in_flight')
      where g.delivery_id = o.delivery_id)
  limit :limit)
returning delivery_id
