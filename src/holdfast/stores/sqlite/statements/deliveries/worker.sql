-- name: start_worker
-- Announces a worker instance with a lease of its own; its deliveries live as long as this row says.
insert into {hf}worker (id, generation, queues, consumers, alive_until)
values (:worker, :generation, :queues, :consumers, {now} + :lease)
on conflict (id) do nothing
returning id

-- name: renew_worker
-- Prolongs a worker's lease; no row means that it was forgotten. A late renewal is harmless: what was taken over
-- meanwhile has another fence.
update {hf}worker set alive_until = {now} + :lease where id = :worker returning id

-- name: stop_worker
-- Ends a worker's lease; what it still holds can be taken over.
delete from {hf}worker where id = :worker

-- name: forget_workers
-- Removes worker rows that ended long ago and hold nothing.
delete from {hf}worker
where alive_until < {now} - :older_than
  and not exists (select 1 from {hf}delivery d where d.status = 'in_flight' and d.locked_by = {hf}worker.id)

-- name: workers
-- Every worker known, with what it serves and how much it holds.
select w.id, w.generation, w.queues, w.consumers, w.started_at, w.alive_until, w.alive_until > {now},
       (select count(*) from {hf}delivery d where d.status = 'in_flight' and d.locked_by = w.id)
from {hf}worker w order by w.started_at, w.id
