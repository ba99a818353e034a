-- The generation of the worker of a run: "since which deploy" depends on the worker, not on the publisher.
alter table {hf}run add column generation bigint;

-- The plan that acted on a delivery. The audit shows a plan in one line and finds it without reading its
-- deliveries. The replay function is also called manually and has no parameter for it.
alter table {hf}audit add column plan_id uuid;
alter table {hf}audit alter column plan_id set default nullif(current_setting('holdfast.plan_id', true), '')::uuid;
create index audit_listed on {hf}audit (id) where plan_id is null;

-- The dead letters of a consumer in the order of a list, independent of newer ones of other consumers.
create index delivery_dead_consumer on {hf}delivery (consumer, id) where status = 'failed' and discarded_at is null;
