-- fragment: lease_end
max(i.lease_until, coalesce((select l.lease_until from {hf}idempotency_lease l where l.owner = i.owner), 0))
-- fragment: request
i.scope, i.key, i.status, i.method, i.path, i.request_hash, i.owner, i.reserved_at, {lease_end} as lease_until,
i.completed_at, i.expires_at, i.response_status, length(i.response_body) as response_bytes,
i.status = 'started' and {lease_end} < {now} as lapsed
-- fragment: answer
i.owner, i.request_hash, i.status, {lease_end} < {now}, i.response_status, i.response_headers, i.response_body
-- fragment: free
(i.expires_at < {now} or (i.status = 'started' and {lease_end} < {now}
  and (:any_request or i.request_hash = :request_hash)))

-- name: reserve_request
-- Reserves a key that is new or expired, or that failed, or whose lease expired: the latter two only for the same
-- request, unless every request is allowed to. Returns the current record.
-- once
insert into {hf}idempotency (scope, key, request_hash, owner, method, path, lease_until, expires_at)
values (:scope, :key, :request_hash, :owner, :method, :path, {now} + :lease, {now} + :keep)
on conflict (scope, key) do nothing;
update {hf}idempotency as i
set request_hash = :request_hash, owner = :owner, status = 'started', method = :method, path = :path,
    response_status = null, response_headers = null, response_body = null, reserved_at = {now},
    lease_until = {now} + :lease, completed_at = null, expires_at = {now} + :keep
where i.scope = :scope and i.key = :key and i.owner <> :owner and {free};
select {answer} from {hf}idempotency i where i.scope = :scope and i.key = :key

-- name: read_request
-- The record of a key, if it exists.
select {answer} from {hf}idempotency i where i.scope = :scope and i.key = :key

-- name: finish_request
-- Stores the response of a request that still owns its key.
update {hf}idempotency
set status = :status, response_status = :response_status, response_headers = :response_headers,
    response_body = :response_body, completed_at = {now}
where scope = :scope and key = :key and owner = :owner and status = 'started'
returning owner

-- name: complete_request
-- Stores the response of a request in the caller's transaction, or raises and rolls it back.
insert into {hf}complete_request (scope, key, owner, status, response_status, response_headers, response_body)
values (:scope, :key, :owner, :status, :response_status, :response_headers, :response_body)

-- name: release_request
-- Releases a key that was not completed, for the same request.
update {hf}idempotency set owner = '', lease_until = {now} - 1
where scope = :scope and key = :key and owner = :owner and status = 'started'
returning owner

-- name: forget_request
-- Releases a key that was not completed, for any request.
delete from {hf}idempotency where scope = :scope and key = :key and owner = :owner and status = 'started'
returning owner

-- name: renew_requests
-- Renews the leases of running requests.
-- each: held
insert into {hf}idempotency_lease (owner, lease_until)
select i.owner, {now} + :lease from {hf}idempotency i
where i.scope = :scope and i.key = :key and i.owner = :owner and i.status = 'started'
on conflict (owner) do update set lease_until = excluded.lease_until
returning owner

-- name: list_requests
-- A page of records, newest first.
select {request} from {hf}idempotency i where true {where} order by i.expires_at desc, i.scope desc, i.key desc limit :limit

-- fragment: where_request_scope
and i.scope = :scope
-- fragment: where_request_key
and i.key = :key
-- fragment: where_request_status
and i.status = :status
-- fragment: where_request_before
and (i.expires_at, i.scope, i.key) < (:before, :before_scope, :before_key)

-- name: remove_request
-- Removes a record with this state and this owner.
delete from {hf}idempotency where scope = :scope and key = :key and owner = :owner and status = :status
returning owner

-- name: forget_requests
-- Removes a batch of expired records.
delete from {hf}idempotency
where rowid in (select rowid from {hf}idempotency where expires_at < {now} limit :limit)
returning owner

-- name: forget_leases
-- Removes leases that expired long ago.
delete from {hf}idempotency_lease where lease_until < {now} - 86400000

-- name: expired_requests
-- The number of expired records.
select count(*) from {hf}idempotency i where i.expires_at < {now}
