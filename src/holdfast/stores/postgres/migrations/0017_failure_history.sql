-- The history of a delivery that was never replayed is an empty list, not null. Rows from before keep null; the views and
-- all readers show a list. The index contains only replayed deliveries, as before.
alter table {hf}delivery alter column failure_history set default '[]';
drop index {hf}delivery_replayed;
create index delivery_replayed on {hf}delivery (id) where failure_history <> '[]'::jsonb;
create or replace view {hf}delivery_view as
  select d.id, m.type, m.source, m.key, d.consumer, d.queue, d.priority, d.status,
         d.discarded_at is not null as discarded, d.attempts, coalesce(d.max_attempts, c.max_attempts) as max_attempts, d.run_at, d.generation,
         d.locked_by as worker, d.lease_until, d.last_error, d.error_type, d.fingerprint, d.first_failed_at,
         coalesce(d.failure_history, '[]'::jsonb) as failure_history, d.created_at, d.claimed_at, d.completed_at, d.message_id, m.payload, m.headers
  from {hf}delivery d join {hf}message m on m.id = d.message_id
  left join {hf}consumer c on c.name = d.consumer;
