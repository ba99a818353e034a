-- The generation of the worker that made a run: "since which deploy" is a question about who ran it, not who published.
alter table {hf}run add column generation integer;

-- The plan under which a delivery was acted on. The audit shows a plan in one line and finds it without reading its
-- deliveries.
alter table {hf}audit add column plan_id text;
create index {hf}audit_listed on {hf}audit (id) where plan_id is null;

-- A consumer's dead letters in the order of a list, however many newer ones others have.
create index {hf}delivery_dead_consumer on {hf}delivery (consumer, id)
  where status = 'failed' and discarded_at is null;
