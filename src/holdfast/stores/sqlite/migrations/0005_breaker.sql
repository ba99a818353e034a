-- Circuits that had a failure, or that an operator tripped. Closed when open_until is null. The fence rises with
-- every change of state, so that a call that entered before has no effect after it.
create table {hf}breaker (
  name        text primary key,
  fence       integer not null default 0,
  failures    integer not null default 0,
  open_until  integer,
  probe_until integer,
  changed_at  integer,
  why         text,
  window_at   integer,
  calls       integer not null default 0,
  failed      integer not null default 0,
  past_calls  integer not null default 0,
  past_failed integer not null default 0
);
