-- Flow control. flow_key is the key of a delivery for limits, rates, order and fairness, found when it is published;
-- null for deliveries of other consumers, and until a worker adopts it. flow_seq is the position of its message, for
-- consumers with an order. flow_ticket is for PostgreSQL: SQLite keeps no old row versions that counting would read.
alter table {hf}delivery add column flow_key text;
alter table {hf}delivery add column flow_seq integer;
alter table {hf}delivery add column flow_ticket integer;

-- Plain deliveries are in none of these indexes.
create index {hf}delivery_flow on {hf}delivery (queue, consumer, generation, priority, flow_key, run_at, id)
  where status = 'pending' and not suspect and flow_key is not null and flow_seq is null;
create index {hf}delivery_order on {hf}delivery (consumer, flow_key, flow_seq)
  where status = 'pending' and flow_seq is not null;
create index {hf}delivery_stuck on {hf}delivery (consumer, flow_key, flow_seq)
  where status = 'failed' and discarded_at is null and flow_seq is not null;
create index {hf}delivery_running on {hf}delivery (consumer, flow_key)
  where status = 'in_flight' and flow_key is not null;
create index {hf}delivery_queue_running on {hf}delivery (queue)
  where status = 'in_flight' and flow_key is not null;

-- The declared settings as JSON text, which is compared as a whole, and the values that an operator set at run time.
alter table {hf}consumer add column flow text;
alter table {hf}consumer add column flow_override text;
alter table {hf}queue add column flow text;
alter table {hf}queue add column flow_override text;

-- Claims in a bucket of a rate's window. The rate of a queue is stored under 'queue:' and its name.
create table {hf}flow_start (
  consumer text not null,
  flow_key text not null,
  bucket   integer not null,
  n        integer not null,
  primary key (consumer, flow_key, bucket)
) without rowid;

-- Keys that an operator paused.
create table {hf}flow_pause (
  consumer  text not null,
  flow_key  text not null,
  paused_at integer not null default ({now}),
  primary key (consumer, flow_key)
) without rowid;
