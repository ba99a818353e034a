-- The state of the intake from each source, as last reported by a worker; only for display.
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
