-- Bulk actions that wait for somebody to start them, or run beside the workers. `position` is how far one has come:
-- it moves in the transaction that acts, so that no item is done twice whoever goes on.
create table {hf}plan (
  id            text primary key,
  action        text not null,
  state         text not null default 'ready' check (state in ('ready', 'running', 'paused', 'done', 'abandoned')),
  preview       text not null,
  rerun         integer not null,
  generation    integer,
  items         integer not null,
  total         integer not null,
  position      integer not null default 0,
  done          integer not null default 0,
  skipped       text not null,
  made_at       integer not null,
  saved_at      integer not null default ({now}),
  saved_by      text not null,
  save_reason   text,
  started_at    integer,
  started_by    text,
  start_reason  text,
  ended_at      integer,
  runner        text,
  lease_until   integer
);
create index {hf}plan_unfinished on {hf}plan (id) where state = 'running';

-- The deliveries of a plan in the order it takes them, as they stood when it was made, and what came of each. Those
-- it left alone from the start come last.
create table {hf}plan_item (
  plan_id       text not null,
  n             integer not null,
  delivery_id   text not null,
  consumer      text,
  type          text,
  status        text,
  generation    integer,
  fence         integer,
  to_generation integer,
  outcome       text,
  replayed_by   text,
  primary key (plan_id, n)
) without rowid;
create index {hf}plan_item_skipped on {hf}plan_item (plan_id, n) where outcome <> 'done';

-- What opens the HTTP API. Of a token only its hash is kept.
create table {hf}token (
  id           text primary key,
  name         text not null,
  scope        text not null check (scope in ('read', 'operate', 'admin')),
  hash         text not null unique,
  prefix       text not null,
  created_at   integer not null default ({now}),
  created_by   text not null,
  expires_at   integer,
  last_used_at integer,
  revoked_at   integer,
  revoked_by   text
);
-- A name is who acted; two who share one could not be told apart in the audit.
create unique index {hf}token_name on {hf}token (name) where revoked_at is null;

-- Dead letters gathered by what went wrong, from an index alone.
create index {hf}delivery_failure on {hf}delivery (fingerprint, consumer, completed_at, first_failed_at, generation)
  where status = 'failed' and discarded_at is null;
