-- The state of the intake from each source, as last reported by a worker; only for display.
create table {hf}intake (
  consumer       text primary key,
  source         text not null,
  direct         integer not null,
  waiting        integer,
  unacknowledged integer,
  problem        text,
  reported_at    integer not null default ({now})
);

create index {hf}delivery_replayed on {hf}delivery (id) where failure_history is not null;
create index {hf}handled_at on {hf}handled (handled_at);
