-- Cron: how far each schedule has fired. An occurrence is a message with a key of its own, so that it is fired
-- once however many schedulers run; this row only says where to go on.
create table {hf}schedule (
  name       text primary key,
  expression text not null,
  tz         text not null,
  missed     text not null,
  last_at    timestamptz not null default now(),
  paused_at  timestamptz
);
