-- A run is its start message: the id of the run is the id of the message, and its steps are deliveries of that message.
-- The tables hold only what deliveries cannot: the state of the run, results, joins, memos, waits and signals.

create table {hf}workflow_definition (
  workflow    text not null,
  version     integer not null,
  hash        text not null,
  graph       text not null,
  declared_at integer not null default ({now}),
  primary key (workflow, version)
) without rowid;

create table {hf}workflow_run (
  id                text primary key,
  name              text not null,
  version           integer not null,
  status            text not null default 'running'
                    check (status in ('running', 'compensating', 'done', 'cancelled', 'failed')),
  waiting           integer not null,
  signals           integer not null default 0,
  epoch             integer not null default 0,
  generation        integer not null,
  parent_run        text,
  parent_wait       text,
  parent_occurrence integer,
  deadline          integer,
  reason            text,
  started_at        integer not null default ({now}),
  ended_at          integer
) without rowid;
create index {hf}workflow_run_name on {hf}workflow_run (name, id);
create index {hf}workflow_run_parent on {hf}workflow_run (parent_run) where parent_run is not null;
create index {hf}workflow_run_deadline on {hf}workflow_run (deadline) where deadline is not null and ended_at is null;
create index {hf}workflow_run_compensating on {hf}workflow_run (id) where status = 'compensating';

-- A step that ended, a join under way, an item of a map, or what a step remembers ('charge/session').
create table {hf}workflow_step (
  run_id      text not null,
  name        text not null,
  occurrence  integer not null default 0,
  delivery_id text not null,
  waiting     integer,
  arrived     integer,
  signal      text,
  wake_at     integer,
  fence       integer,
  next        text,
  item        text,
  result      text,
  outcome     text,
  done_at     integer,
  unadvanced  integer,
  primary key (run_id, name, occurrence)
);
create index {hf}workflow_step_wait on {hf}workflow_step (run_id, signal) where signal is not null and done_at is null;
create index {hf}workflow_step_unadvanced on {hf}workflow_step (done_at) where unadvanced;
create index {hf}workflow_step_item on {hf}workflow_step (delivery_id) where item is not null;

create table {hf}workflow_signal (
  id          text primary key,
  run_id      text not null,
  name        text not null,
  payload     text,
  consumed_by text,
  sent_at     integer not null default ({now})
) without rowid;
create index {hf}workflow_signal_open on {hf}workflow_signal (run_id, name, id) where consumed_by is null;
create index {hf}workflow_signal_run on {hf}workflow_signal (run_id, id);
