-- The positions of the readers of the event store: relays and projector rebuilds. `cursor` is a log position, as
-- the log writes it. One owner at a time, by a lease; each owner increments the fence, so that a previous owner
-- cannot move it.
create table {hf}position (
  kind        text not null,
  name        text not null,
  cursor      text not null,
  owner       text,
  fence       bigint not null default 0,
  lease_until timestamptz,
  passed      bigint not null default 0,
  detail      text,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (kind, name)
) with (fillfactor = 50);
