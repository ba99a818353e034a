-- Bulk actions that wait for their start or run in a worker. `position` is their progress:
-- it moves in the transaction of the action, so that no item is done twice when another runner continues.
create table {hf}plan (
  id            uuid primary key,
  action        text not null,
  state         text not null default 'ready' check (state in ('ready', 'running', 'paused', 'done', 'abandoned')),
  preview       jsonb not null,
  rerun         boolean not null,
  generation    bigint,
  items         integer not null,
  total         integer not null,
  position      integer not null default 0,
  done          integer not null default 0,
  skipped       jsonb not null,
  made_at       timestamptz not null,
  saved_at      timestamptz not null default now(),
  saved_by      text not null,
  save_reason   text,
  started_at    timestamptz,
  started_by    text,
  start_reason  text,
  ended_at      timestamptz,
  runner        text,
  lease_until   timestamptz
);
create index plan_unfinished on {hf}plan (id) where state = 'running';

-- The deliveries of a plan in the order of execution, with their state at its creation and their outcome. Deliveries
-- that the plan skips are last.
create table {hf}plan_item (
  plan_id       uuid not null,
  n             integer not null,
  delivery_id   uuid not null,
  consumer      text,
  type          text,
  status        text,
  generation    bigint,
  fence         bigint,
  to_generation bigint,
  outcome       text,
  replayed_by   text,
  primary key (plan_id, n)
) with (fillfactor = 90);
create index plan_item_skipped on {hf}plan_item (plan_id, n) where outcome <> 'done';

-- API tokens. Only the hash of a token is stored.
create table {hf}token (
  id           text primary key,
  name         text not null,
  scope        text not null check (scope in ('read', 'operate', 'admin')),
  hash         text not null unique,
  prefix       text not null,
  created_at   timestamptz not null default now(),
  created_by   text not null,
  expires_at   timestamptz,
  last_used_at timestamptz,
  revoked_at   timestamptz,
  revoked_by   text
);
-- A name identifies the actor: two tokens with the same name would be indistinguishable in the audit.
create unique index token_name on {hf}token (name) where revoked_at is null;

-- Dead letters grouped by failure, from an index only.
create index delivery_failure on {hf}delivery (fingerprint, consumer, completed_at, first_failed_at, generation)
  where status = 'failed' and discarded_at is null;
