-- Times are whole milliseconds since 1970 in UTC; ids are UUIDs as text. See the views for readable times.

create table {hf}message (
  position    integer primary key autoincrement,
  id          text not null unique,
  type        text not null,
  source      text not null,
  key         text,
  payload     text not null,
  headers     text not null,
  generation  integer not null,
  occurred_at integer not null default ({now}),
  sub_epoch   integer not null
);

create unique index {hf}message_key on {hf}message (source, key) where key is not null;

create table {hf}consumer (
  name             text primary key,
  queue            text not null,
  priority         integer not null,
  max_attempts     integer not null,
  retry            text not null,
  generation       integer not null,
  registered_at    integer not null default ({now}),
  pruned_to        text,
  paused_at        integer,
  blocked_until    integer,
  blocked_resource text
);

create table {hf}queue (
  name      text primary key,
  paused_at integer
);

create table {hf}subscription (
  pattern       text not null,
  consumer      text not null references {hf}consumer (name),
  epoch         integer not null,
  since_epoch   integer not null,
  from_start    integer not null,
  resumed       integer not null,
  mark_position integer not null default 0,
  retired_at    integer,
  primary key (pattern, consumer)
);

-- The id is derived from the message and the consumer: the key alone keeps one delivery per pair.
create table {hf}delivery (
  id              text not null primary key,
  message_id      text not null,
  consumer        text not null,
  queue           text not null,
  priority        integer not null,
  generation      integer not null,
  status          text not null default 'pending' check (status in ('pending', 'in_flight', 'delivered', 'failed')),
  run_at          integer not null default ({now}),
  attempts        integer not null default 0,
  max_attempts    integer,
  fence           integer not null default 0,
  suspect         integer not null default 0,
  holds           integer not null default 0,
  expiries        integer not null default 0,
  created_at      integer not null default ({now}),
  claimed_at      integer,
  completed_at    integer,
  lease_until     integer,
  locked_by       text,
  retry           text,
  unique_key      text,
  last_error      text,
  error_type      text,
  fingerprint     text,
  first_failed_at integer,
  failure_history text,
  discarded_at    integer,
  check ((status = 'in_flight') = (locked_by is not null))
);

create index {hf}delivery_claim on {hf}delivery (queue, consumer, generation, priority, run_at, id)
  where status = 'pending' and not suspect;
create index {hf}delivery_suspect on {hf}delivery (queue, consumer, generation, priority, run_at, id)
  where status = 'pending' and suspect;
create index {hf}delivery_lease on {hf}delivery (locked_by) where status = 'in_flight';
create index {hf}delivery_failed on {hf}delivery (id, discarded_at) where status = 'failed';
create index {hf}delivery_failed_count on {hf}delivery (consumer, queue, discarded_at, completed_at)
  where status = 'failed';
create index {hf}delivery_group on {hf}delivery (fingerprint, id) where status = 'failed' and discarded_at is null;
create unique index {hf}delivery_unique on {hf}delivery (consumer, unique_key)
  where unique_key is not null and status in ('pending', 'in_flight');

create table {hf}run (
  delivery_id  text not null,
  fence        integer not null,
  attempt      integer not null,
  outcome      text not null,
  error_type   text,
  error        text,
  trace        text,
  worker       text not null,
  started_at   integer,
  completed_at integer not null default ({now}),
  primary key (delivery_id, fence)
) without rowid;

create table {hf}handled (
  consumer    text not null,
  source      text not null,
  key         text not null,
  delivery_id text not null,
  handled_at  integer not null default ({now}),
  primary key (source, key, consumer)
) without rowid;

create table {hf}worker (
  id          text primary key,
  generation  integer not null,
  queues      text not null,
  consumers   text not null,
  started_at  integer not null default ({now}),
  alive_until integer not null
);

create table {hf}audit (
  id     integer primary key autoincrement,
  at     integer not null default ({now}),
  actor  text not null,
  action text not null,
  kind   text not null,
  target text not null,
  reason text,
  detail text
);
create index {hf}audit_target on {hf}audit (kind, target, id);

-- Inserting here marks a delivery delivered inside the caller's own transaction. RAISE(ROLLBACK) undoes that
-- transaction when the lease is lost, so swallowing the error cannot commit the effect.
create view {hf}complete as select id as delivery_id, fence, locked_by as worker from {hf}delivery;
create trigger {hf}complete_insert instead of insert on {hf}complete
begin
  select raise(rollback, 'holdfast: lease lost')
  where not exists (
    select 1 from {hf}delivery d
    where d.id = new.delivery_id and d.fence = new.fence and d.locked_by = new.worker);
  update {hf}delivery
  set status = 'delivered', completed_at = {now}, suspect = 0, expiries = 0, holds = 0,
      lease_until = null, locked_by = null
  where id = new.delivery_id;
end;

-- Inserting here records (consumer, source, key) as handled, or undoes the caller's transaction.
create view {hf}record_handled as select consumer, source, key, delivery_id from {hf}handled;
create trigger {hf}record_handled_insert instead of insert on {hf}record_handled
begin
  select raise(rollback, 'holdfast: already handled')
  where exists (
    select 1 from {hf}handled h
    where h.consumer = new.consumer and h.source = new.source and h.key = new.key);
  insert into {hf}handled (consumer, source, key, delivery_id)
  values (new.consumer, new.source, new.key, new.delivery_id);
end;

-- Readable by an operator with only the sqlite3 shell.
create view {hf}delivery_view as
  select d.id, m.type, m.source, m.key, d.consumer, d.queue, d.priority, d.status,
         d.discarded_at is not null as discarded, d.attempts, coalesce(d.max_attempts, c.max_attempts) as max_attempts,
         datetime(d.run_at / 1000.0, 'unixepoch') as run_at, d.generation, d.locked_by as worker,
         datetime(d.lease_until / 1000.0, 'unixepoch') as lease_until, d.last_error, d.error_type, d.fingerprint,
         datetime(d.first_failed_at / 1000.0, 'unixepoch') as first_failed_at, d.failure_history,
         datetime(d.created_at / 1000.0, 'unixepoch') as created_at,
         datetime(d.claimed_at / 1000.0, 'unixepoch') as claimed_at,
         datetime(d.completed_at / 1000.0, 'unixepoch') as completed_at, d.message_id, m.payload, m.headers
  from {hf}delivery d join {hf}message m on m.id = d.message_id
  left join {hf}consumer c on c.name = d.consumer;

create view {hf}dead_letter as
  select * from {hf}delivery_view where status = 'failed' and not discarded;
