-- name: start_worker
-- Registers a worker instance with a lease, which also applies to its deliveries.
insert into {hf}worker (id, generation, queues, consumers, alive_until)
values (:worker::text, :generation::bigint, :queues::text[], :consumers::text[], now() + :lease::interval)
on conflict (id) do nothing
returning id

-- name: renew_worker
-- Renews a worker's lease. No row means that it had expired or was removed: its deliveries may have been rescued.
-- It returns the runs of this worker that were cancelled.
update {hf}worker set alive_until = now() + :lease::interval where id = :worker::text and alive_until >= now()
returning id, (select json_agg(json_build_array(c.delivery_id, c.fence))::text
               from {hf}cancellation c where c.worker = :worker::text) as cancelled

-- name: forget_cancellations
-- Removes cancellations that their worker has received.
delete from {hf}cancellation c
using unnest(:delivery_id::uuid[], :fence::bigint[]) r (delivery_id, fence)
where c.worker = :worker::text and c.delivery_id = r.delivery_id and c.fence = r.fence

-- name: stop_worker
-- Ends a worker's lease; its deliveries can be rescued.
delete from {hf}worker where id = :worker::text

-- name: forget_workers
-- Removes rows of workers that ended long ago and hold no delivery, and cancellations that no worker reads.
with c as (delete from {hf}cancellation c where not exists (select 1 from {hf}worker w where w.id = c.worker))
delete from {hf}worker w
where w.alive_until < now() - :older_than::interval
  and not exists (select 1 from {hf}delivery d where d.status = 'in_flight' and d.locked_by = w.id)

-- name: workers
-- All workers, with their queues and consumers and the number of their deliveries.
select w.id, w.generation, w.queues, w.consumers, w.started_at, w.alive_until, w.alive_until > now(),
       (select count(*) from {hf}delivery d where d.status = 'in_flight' and d.locked_by = w.id)
from {hf}worker w order by w.started_at, w.id

-- name: live_workers
-- The workers with a valid lease. Their deliveries are not counted, because that reads the index of deliveries in flight.
select w.id, w.generation, w.queues, w.consumers from {hf}worker w where w.alive_until > now() order by w.started_at, w.id
