-- Circuits that had a failure, or that an operator tripped. Closed when open_until is null. The fence rises with
-- every change of state, so that a call that entered before has no effect after it.
create table {hf}breaker (
  name        text primary key,
  fence       bigint not null default 0,
  failures    integer not null default 0,
  open_until  timestamptz,
  probe_until timestamptz,
  changed_at  timestamptz,
  why         text,
  window_at   timestamptz,
  calls       bigint not null default 0,
  failed      bigint not null default 0,
  past_calls  bigint not null default 0,
  past_failed bigint not null default 0
);
