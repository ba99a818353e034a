-- Flow control. flow_key is the key of a delivery for limits, rates, order and fairness, found when it is published;
-- null for deliveries of other consumers, and until a worker adopts it. flow_seq is the position of its message, for
-- consumers with an order. flow_ticket numbers claims: no delivery in flight has a lower one than the lowest that was
-- seen under the lock, so counting can start there. Byte order, so that a walk over the keys follows the index.
alter table {hf}delivery
  add column if not exists flow_key text collate "C",
  add column if not exists flow_seq bigint,
  add column if not exists flow_ticket bigint;
create sequence {hf}flow_ticket;

-- Plain deliveries are in none of these indexes. Each is built by a scan of the table, which is locked until the end; on a
-- large table an operator adds the columns and builds them beforehand (docs/operate/deploy.md).
create index if not exists delivery_flow on {hf}delivery (queue, consumer, generation, priority, flow_key, run_at, id)
  where status = 'pending' and not suspect and flow_key is not null and flow_seq is null;
create index if not exists delivery_order on {hf}delivery (consumer, flow_key, flow_seq)
  where status = 'pending' and flow_seq is not null;
create index if not exists delivery_stuck on {hf}delivery (consumer, flow_key, flow_seq)
  where status = 'failed' and discarded_at is null and flow_seq is not null;
create index if not exists delivery_running on {hf}delivery (consumer, flow_key, flow_ticket)
  where status = 'in_flight' and flow_key is not null;
create index if not exists delivery_queue_running on {hf}delivery (queue, flow_ticket)
  where status = 'in_flight' and flow_key is not null;

-- The declared settings as JSON text, which is compared as a whole, and the values that an operator set at run time.
alter table {hf}consumer add column flow text, add column flow_override text;
alter table {hf}queue add column flow text, add column flow_override text;

-- Claims in a bucket of a rate's window. The rate of a queue is stored under 'queue:' and its name.
create table {hf}flow_start (
  consumer text not null,
  flow_key text collate "C" not null,
  bucket   timestamptz not null,
  n        integer not null,
  primary key (consumer, flow_key, bucket)
);

-- Keys that an operator paused.
create table {hf}flow_pause (
  consumer  text not null,
  flow_key  text collate "C" not null,
  paused_at timestamptz not null default now(),
  primary key (consumer, flow_key)
);
