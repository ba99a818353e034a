-- The history of a delivery that was never replayed is an empty list, not null. Rows from before keep null; the views and
-- all readers show a list. The index contains only replayed deliveries, as before.
drop index {hf}delivery_replayed;
create index {hf}delivery_replayed on {hf}delivery (id) where failure_history <> '[]';
drop view {hf}dead_letter;
drop view {hf}delivery_view;
create view {hf}delivery_view as
  select d.id, m.type, m.source, m.key, d.consumer, d.queue, d.priority, d.status,
         d.discarded_at is not null as discarded, d.attempts, coalesce(d.max_attempts, c.max_attempts) as max_attempts,
         datetime(d.run_at / 1000.0, 'unixepoch') as run_at, d.generation, d.locked_by as worker,
         datetime(d.lease_until / 1000.0, 'unixepoch') as lease_until, d.last_error, d.error_type, d.fingerprint,
         datetime(d.first_failed_at / 1000.0, 'unixepoch') as first_failed_at, coalesce(d.failure_history, '[]') as failure_history,
         datetime(d.created_at / 1000.0, 'unixepoch') as created_at,
         datetime(d.claimed_at / 1000.0, 'unixepoch') as claimed_at,
         datetime(d.completed_at / 1000.0, 'unixepoch') as completed_at, d.message_id, m.payload, m.headers
  from {hf}delivery d join {hf}message m on m.id = d.message_id
  left join {hf}consumer c on c.name = d.consumer;

create view {hf}dead_letter as
  select * from {hf}delivery_view where status = 'failed' and not discarded;
