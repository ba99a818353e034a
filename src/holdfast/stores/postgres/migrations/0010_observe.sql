-- Secret payload fields by event pattern, as declared by apps. Operator tools run without the app and read them here.
-- Declarations are never removed, because the stored messages still contain the secrets.
create table {hf}redaction (
  pattern text not null,
  path    text not null,
  primary key (pattern, path)
);

-- The last alert of each failure group, so that ten workers do not alert ten times; `alike` counts failures since then.
create table {hf}alert (
  consumer    text not null,
  fingerprint text not null,
  told_at     timestamptz not null default now(),
  alike       bigint not null default 0,
  primary key (consumer, fingerprint)
);

-- The request of an action. The replay function is also called manually and has no parameter for it.
alter table {hf}audit add column request_id text;
alter table {hf}audit alter column request_id set default nullif(current_setting('holdfast.request_id', true), '');
create index audit_request on {hf}audit (request_id, id) where request_id is not null;

-- A request is traced by its id.
create index message_request on {hf}message ((headers ->> 'request_id'), id)
  where headers ->> 'request_id' is not null;
