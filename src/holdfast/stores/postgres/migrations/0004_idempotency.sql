-- Requests with an idempotency key: their current owner and their response. `owner` is the fence: it changes
-- with every reservation. Expiry counts from the reservation, so that storing an answer changes no index.
create table {hf}idempotency (
  scope            text not null,
  key              text not null,
  request_hash     text not null,
  owner            text not null,
  status           text not null default 'started' check (status in ('started', 'completed', 'failed')),
  method           text not null,
  path             text not null,
  response_status  integer,
  response_headers jsonb,
  response_body    bytea,
  reserved_at      timestamptz not null default now(),
  lease_until      timestamptz not null,
  completed_at     timestamptz,
  expires_at       timestamptz not null,
  primary key (scope, key)
) with (fillfactor = 80);
create index idempotency_expiry on {hf}idempotency (expires_at);

-- Renewed leases in a separate table: a renewal must not change the row that a transaction with an older snapshot is
-- about to complete.
create table {hf}idempotency_lease (
  owner       text primary key,
  lease_until timestamptz not null
);

-- Stores a request's answer inside the caller's own transaction, or raises: swallowing the error cannot commit,
-- because PostgreSQL has aborted the transaction.
create function {hf}complete_request(
  held_scope text, held_key text, held_owner text, new_status text, answer_status integer, answer_headers jsonb,
  answer_body bytea, idle_timeout_ms bigint)
returns void
language plpgsql as $function$
begin
  -- A peer that dies silently must not hold the row forever.
  perform set_config('idle_in_transaction_session_timeout', idle_timeout_ms::text, true);
  update {hf}idempotency
  set status = new_status, response_status = answer_status, response_headers = answer_headers,
      response_body = answer_body, completed_at = now()
  where scope = held_scope and key = held_key and owner = held_owner and status = 'started';
  if not found then
    raise exception 'holdfast: reservation lost for key % of scope %', held_key, held_scope using errcode = 'HF003';
  end if;
end
$function$;
