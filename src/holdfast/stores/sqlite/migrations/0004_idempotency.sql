-- Requests with an idempotency key: their current owner and their response. `owner` is the fence: it changes
-- with every reservation. Expiry counts from the reservation.
create table {hf}idempotency (
  scope            text not null,
  key              text not null,
  request_hash     text not null,
  owner            text not null,
  status           text not null default 'started' check (status in ('started', 'completed', 'failed')),
  method           text not null,
  path             text not null,
  response_status  integer,
  response_headers text,
  response_body    blob,
  reserved_at      integer not null default ({now}),
  lease_until      integer not null,
  completed_at     integer,
  expires_at       integer not null,
  primary key (scope, key)
);
create index {hf}idempotency_expiry on {hf}idempotency (expires_at);

-- Renewed leases in a separate table, as in PostgreSQL.
create table {hf}idempotency_lease (
  owner       text primary key,
  lease_until integer not null
);

-- Inserting here stores a request's answer inside the caller's own transaction. RAISE(ROLLBACK) undoes that
-- transaction when the reservation is lost, so swallowing the error cannot commit the effect.
create view {hf}complete_request as
  select scope, key, owner, status, response_status, response_headers, response_body from {hf}idempotency;
create trigger {hf}complete_request_insert instead of insert on {hf}complete_request
begin
  select raise(rollback, 'holdfast: reservation lost')
  where not exists (
    select 1 from {hf}idempotency i
    where i.scope = new.scope and i.key = new.key and i.owner = new.owner and i.status = 'started');
  update {hf}idempotency
  set status = new.status, response_status = new.response_status, response_headers = new.response_headers,
      response_body = new.response_body, completed_at = {now}
  where scope = new.scope and key = new.key;
end;
