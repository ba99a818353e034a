-- What apps declared secret: fields of payloads, by event pattern. Operators' tools know no app and read it here.
-- Nothing is taken away again: what was secret once is so in the messages that are stored.
create table {hf}redaction (
  pattern text not null,
  path    text not null,
  primary key (pattern, path)
) without rowid;

-- When a group of like failures was last told of, so that a worker that starts anew does not tell again; `alike`
-- came since.
create table {hf}alert (
  consumer    text not null,
  fingerprint text not null,
  told_at     integer not null default ({now}),
  alike       integer not null default 0,
  primary key (consumer, fingerprint)
) without rowid;

-- The request in which somebody acted.
alter table {hf}audit add column request_id text;
create index {hf}audit_request on {hf}audit (request_id, id) where request_id is not null;

-- One user action is followed by its request id alone.
create index {hf}message_request on {hf}message (json_extract(headers, '$.request_id'), id)
  where json_extract(headers, '$.request_id') is not null;
