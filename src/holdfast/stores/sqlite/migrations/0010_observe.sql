-- Secret payload fields by event pattern, as declared by apps. Operator tools run without the app and read them here.
-- Declarations are never removed, because the stored messages still contain the secrets.
create table {hf}redaction (
  pattern text not null,
  path    text not null,
  primary key (pattern, path)
) without rowid;

-- The last alert of each failure group, so that a restarted worker does not alert again; `alike` counts the failures
-- since then.
create table {hf}alert (
  consumer    text not null,
  fingerprint text not null,
  told_at     integer not null default ({now}),
  alike       integer not null default 0,
  primary key (consumer, fingerprint)
) without rowid;

-- The request of an action.
alter table {hf}audit add column request_id text;
create index {hf}audit_request on {hf}audit (request_id, id) where request_id is not null;

-- A request is traced by its id.
create index {hf}message_request on {hf}message (json_extract(headers, '$.request_id'), id)
  where json_extract(headers, '$.request_id') is not null;
