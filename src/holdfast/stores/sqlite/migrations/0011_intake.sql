-- How the intake of each source's records stands, as the last worker saw it: for people, nothing depends on it.
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
