-- What apps declared secret: fields of payloads, by event pattern. Operators' tools know no app and read it here.
-- Nothing is taken away again: what was secret once is so in the messages that are stored.
create table {hf}redaction (
  pattern text not null,
  path    text not null,
  primary key (pattern, path)
);

-- When a group of like failures was last told of, so that ten workers do not tell ten times; `alike` came since.
create table {hf}alert (
  consumer    text not null,
  fingerprint text not null,
  told_at     timestamptz not null default now(),
  alike       bigint not null default 0,
  primary key (consumer, fingerprint)
);

-- The request in which somebody acted. The function that replays is called by hand, too, and has no parameter for it.
alter table {hf}audit add column request_id text;
alter table {hf}audit alter column request_id set default nullif(current_setting('holdfast.request_id', true), '');
create index audit_request on {hf}audit (request_id, id) where request_id is not null;

-- One user action is followed by its request id alone.
create index message_request on {hf}message ((headers ->> 'request_id'), id)
  where headers ->> 'request_id' is not null;
