-- Cron: the last occurrence of each schedule. Each occurrence is a message with its own key, so that it is fired
-- once even if several schedulers run; this row only stores where to continue.
create table {hf}schedule (
  name       text primary key,
  expression text not null,
  tz         text not null,
  missed     text not null,
  last_at    integer not null default ({now}),
  paused_at  integer
);
