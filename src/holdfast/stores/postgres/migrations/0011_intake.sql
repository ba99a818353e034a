-- How the intake of each source's records stands, as the last worker saw it: for people, nothing depends on it.
create table {hf}intake (
  consumer       text primary key,
  source         text not null,
  direct         boolean not null,
  waiting        bigint,
  unacknowledged bigint,
  problem        text,
  reported_at    timestamptz not null default now()
);

create index delivery_replayed on {hf}delivery (id) where failure_history is not null;
create index handled_at on {hf}handled (handled_at);
