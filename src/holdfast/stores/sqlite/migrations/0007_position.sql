-- How far each reader of the event store has come: relays, rebuilds of projectors. `cursor` is a place in the log, as
-- the log writes it. One owner at a time, by a lease; the fence rises with every owner, so that one who was replaced
-- moves nothing any more.
create table {hf}position (
  kind        text not null,
  name        text not null,
  cursor      text not null,
  owner       text,
  fence       integer not null default 0,
  lease_until integer,
  passed      integer not null default 0,
  detail      text,
  created_at  integer not null default ({now}),
  updated_at  integer not null default ({now}),
  primary key (kind, name)
);
