-- fragment: lease_end
greatest(i.lease_until, (select l.lease_until from {hf}idempotency_lease l where l.owner = i.owner))
-- fragment: request
i.scope, i.key, i.status, i.method, i.path, i.request_hash, i.owner, i.reserved_at, {lease_end} as lease_until,
i.completed_at, i.expires_at, i.response_status, octet_length(i.response_body) as response_bytes,
i.status = 'started' and {lease_end} < now() as lapsed
-- fragment: answer
i.owner, i.request_hash, i.status, {lease_end} < now(), i.response_status, i.response_headers::text, i.response_body
-- fragment: free
(i.expires_at < now() or (i.status = 'started' and {lease_end} < now()
  and (:any_request::boolean or i.request_hash = :request_hash::text)))

-- name: reserve_request
-- Reserves a key that is new or expired, or that failed, or whose lease expired: the latter two only for the same
-- request, unless every request is allowed to. Returns the current record.
-- It never waits for a transaction that completes a record: it does not insert if the row is visible, and it skips
-- a locked row.
with mine as (
  insert into {hf}idempotency (scope, key, request_hash, owner, method, path, lease_until, expires_at)
  select :scope::text, :key::text, :request_hash::text, :owner::text, :method::text, :path::text,
         now() + :lease::interval, now() + :keep::interval
  where not exists (select 1 from {hf}idempotency i where i.scope = :scope::text and i.key = :key::text)
  on conflict (scope, key) do nothing
  returning owner, request_hash),
taken as (
  update {hf}idempotency i
  set request_hash = :request_hash::text, owner = :owner::text, status = 'started', method = :method::text,
      path = :path::text, response_status = null, response_headers = null, response_body = null, reserved_at = now(),
      lease_until = now() + :lease::interval, completed_at = null, expires_at = now() + :keep::interval
  where i.scope = :scope::text and i.key = :key::text and i.owner = (
    select i.owner from {hf}idempotency i
    where i.scope = :scope::text and i.key = :key::text and {free} for update skip locked)
  returning i.owner, i.request_hash)
select m.owner, m.request_hash, 'started', false, null::integer, null::text, null::bytea
from (select * from mine union all select * from taken) m
union all
select {answer} from {hf}idempotency i
where i.scope = :scope::text and i.key = :key::text
  and not exists (select 1 from mine) and not exists (select 1 from taken)

-- name: read_request
-- The record of a key, if it exists.
select {answer} from {hf}idempotency i where i.scope = :scope::text and i.key = :key::text

-- name: finish_request
-- Stores the response of a request that still owns its key.
update {hf}idempotency i
set status = :status::text, response_status = :response_status::integer,
    response_headers = :response_headers::text::jsonb, response_body = :response_body::bytea, completed_at = now()
where i.scope = :scope::text and i.key = :key::text and i.owner = :owner::text and i.status = 'started'
returning i.owner

-- name: complete_request
-- Stores the response of a request in the caller's transaction, or raises and aborts it.
select {hf}complete_request(
  :scope::text, :key::text, :owner::text, :status::text, :response_status::integer, :response_headers::text::jsonb,
  :response_body::bytea, :idle_timeout_ms::bigint)

-- name: release_request
-- Releases a key that was not completed, for the same request. A record that a transaction has locked is skipped; its
-- lease expires.
update {hf}idempotency i set owner = '', lease_until = now() - interval '1 millisecond'
where i.scope = :scope::text and i.key = :key::text and i.owner = (
  select i.owner from {hf}idempotency i
  where i.scope = :scope::text and i.key = :key::text and i.owner = :owner::text and i.status = 'started'
  for update skip locked)
returning i.owner

-- name: forget_request
-- Releases a key that was not completed, for any request. A record that a transaction has locked is skipped; its
-- lease expires.
delete from {hf}idempotency i
where i.scope = :scope::text and i.key = :key::text and i.owner = (
  select i.owner from {hf}idempotency i
  where i.scope = :scope::text and i.key = :key::text and i.owner = :owner::text and i.status = 'started'
  for update skip locked)
returning i.owner

-- name: renew_requests
-- Renews the leases of running requests.
insert into {hf}idempotency_lease (owner, lease_until)
select i.owner, now() + :lease::interval
from unnest(:scope::text[], :key::text[], :owner::text[]) h (scope, key, owner)
join {hf}idempotency i on i.scope = h.scope and i.key = h.key and i.owner = h.owner
where i.status = 'started'
on conflict (owner) do update set lease_until = excluded.lease_until
returning owner

-- name: list_requests
-- A page of records, newest first.
select {request} from {hf}idempotency i where true {where} order by i.expires_at desc, i.scope desc, i.key desc limit {limit}

-- fragment: where_request_scope
and i.scope = :scope::text
-- fragment: where_request_key
and i.key = :key::text
-- fragment: where_request_status
and i.status = :status::text
-- fragment: where_request_before
and (i.expires_at, i.scope, i.key) < (:before::timestamptz, :before_scope::text, :before_key::text)

-- name: remove_request
-- Removes a record with this state and this owner.
delete from {hf}idempotency i
where i.scope = :scope::text and i.key = :key::text and i.owner = :owner::text and i.status = :status::text
returning i.owner

-- name: forget_requests
-- Removes a batch of expired records; skips records that a transaction has locked.
delete from {hf}idempotency i using (
  select i.scope, i.key from {hf}idempotency i where i.expires_at < now() limit {limit} for update skip locked) old
where i.scope = old.scope and i.key = old.key
returning i.owner

-- name: forget_leases
-- Removes leases that expired long ago.
delete from {hf}idempotency_lease where lease_until < now() - interval '1 day'

-- name: expired_requests
-- The number of expired records.
select count(*) from {hf}idempotency i where i.expires_at < now()
