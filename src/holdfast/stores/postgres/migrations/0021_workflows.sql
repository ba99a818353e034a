-- A run is its start message: the id of the run is the id of the message, and its steps are deliveries of that message.
-- The tables hold only what deliveries cannot: the state of the run, results, joins, memos, waits and signals.

create table {hf}workflow_definition (
  workflow    text not null,
  version     integer not null,
  hash        text not null,
  graph       jsonb not null,
  declared_at timestamptz not null default now(),
  primary key (workflow, version)
);

create table {hf}workflow_run (
  id                uuid primary key,
  name              text not null,
  version           integer not null,
  status            text not null default 'running'
                    check (status in ('running', 'compensating', 'done', 'cancelled', 'failed')),
  waiting           integer not null,             -- last steps that are not done
  signals           bigint not null default 0,    -- rises with everything that a suspended step may wait for
  epoch             integer not null default 0,   -- rises with every retry from a step
  generation        bigint not null,
  parent_run        uuid,
  parent_wait       text,
  parent_occurrence integer,
  deadline          timestamptz,
  reason            text,
  started_at        timestamptz not null default now(),
  ended_at          timestamptz
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
create index workflow_run_name on {hf}workflow_run (name, id);
create index workflow_run_parent on {hf}workflow_run (parent_run) where parent_run is not null;
create index workflow_run_deadline on {hf}workflow_run (deadline) where deadline is not null and ended_at is null;
create index workflow_run_compensating on {hf}workflow_run (id) where status = 'compensating';

-- A step that ended, a join under way, an item of a map, or what a step remembers ('charge/session').
create table {hf}workflow_step (
  run_id      uuid not null,
  name        text collate "C" not null,
  occurrence  integer not null default 0,
  delivery_id uuid not null,
  waiting     integer,                            -- completions that a join still waits for
  arrived     integer,
  signal      text,
  wake_at     timestamptz,
  fence       bigint,                             -- the claim under which it was written
  next        text,
  item        jsonb,
  result      jsonb,
  outcome     text,
  done_at     timestamptz,
  unadvanced  boolean,
  primary key (run_id, name, occurrence)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
create index workflow_step_wait on {hf}workflow_step (run_id, signal) where signal is not null and done_at is null;
create index workflow_step_unadvanced on {hf}workflow_step (done_at) where unadvanced;
create index workflow_step_item on {hf}workflow_step (delivery_id) where item is not null;

create table {hf}workflow_signal (
  id          uuid primary key,                   -- the id of its message
  run_id      uuid not null,
  name        text not null,
  payload     jsonb,
  consumed_by text,
  sent_at     timestamptz not null default now()
);
create index workflow_signal_open on {hf}workflow_signal (run_id, name, id) where consumed_by is null;
create index workflow_signal_run on {hf}workflow_signal (run_id, id);
