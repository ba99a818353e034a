-- name: start_worker
-- Registers a worker instance with a lease, which also applies to its deliveries.
insert into {hf}worker (id, generation, queues, consumers, alive_until)
values (:worker, :generation, :queues, :consumers, {now} + :lease)
on conflict (id) do nothing
returning id

-- name: renew_worker
-- Renews a worker's lease. No row means that it had expired or was removed: its deliveries may have been rescued.
-- It returns the runs of this worker that were cancelled.
update {hf}worker set alive_until = {now} + :lease where id = :worker and alive_until >= {now}
returning id, (select nullif(json_group_array(json_array(c.delivery_id, c.fence)), '[]')
               from {hf}cancellation c where c.worker = :worker) as cancelled

-- name: forget_cancellations
-- Removes cancellations that their worker has received.
-- each: runs
delete from {hf}cancellation where worker = :worker and delivery_id = :delivery_id and fence = :fence

-- name: stop_worker
-- Ends a worker's lease; its deliveries can be rescued.
delete from {hf}worker where id = :worker

-- name: forget_workers
-- Removes rows of workers that ended long ago and hold no delivery, and cancellations that no worker reads.
-- once
delete from {hf}cancellation where worker not in (select w.id from {hf}worker w);
delete from {hf}worker
where alive_until < {now} - :older_than
  and not exists (select 1 from {hf}delivery d where d.status = 'in_flight' and d.locked_by = {hf}worker.id)

-- name: workers
-- All workers, with their queues and consumers and the number of their deliveries.
select w.id, w.generation, w.queues, w.consumers, w.started_at, w.alive_until, w.alive_until > {now},
       (select count(*) from {hf}delivery d where d.status = 'in_flight' and d.locked_by = w.id)
from {hf}worker w order by w.started_at, w.id

-- name: live_workers
-- The workers with a valid lease. Their deliveries are not counted, because that reads the index of deliveries in flight.
select w.id, w.generation, w.queues, w.consumers from {hf}worker w where w.alive_until > {now} order by w.started_at, w.id
