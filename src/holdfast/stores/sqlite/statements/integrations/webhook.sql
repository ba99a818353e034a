-- name: isolation
-- The isolation level of the caller's transaction; SQLite has one writer, so it is equivalent to read committed.
select 'read committed'

-- name: add_endpoint
-- Stores an endpoint; its consumer and subscriptions are registered in the same transaction.
insert into {hf}endpoint (id, consumer, url, tenant, events, headers, secret, concurrency)
values (:id, :consumer, :url, :tenant, :events, :headers, :secret, :concurrency)

-- name: endpoints
-- All endpoints with the settings of their consumers; a previous secret only while it is valid.
select e.id, e.consumer, e.url, e.tenant, e.events, e.headers, e.secret,
       case when e.previous_until > {now} then e.previous_secret end,
       case when e.previous_until > {now} then e.previous_until end,
       e.concurrency, e.created_at, e.disabled_at, e.disabled_reason, c.queue, c.priority, c.retry, c.flow,
       c.flow_override
from {hf}endpoint e join {hf}consumer c on c.name = e.consumer
order by e.created_at, e.id

-- name: listed_endpoints
-- The rows of `endpoints` without secrets, for a role that may not read them.
select e.id, e.consumer, e.url, e.tenant, e.events, e.headers, null, null,
       case when e.previous_until > {now} then e.previous_until end,
       e.concurrency, e.created_at, e.disabled_at, e.disabled_reason, c.queue, c.priority, c.retry, c.flow,
       c.flow_override
from {hf}endpoint e join {hf}consumer c on c.name = e.consumer
order by e.created_at, e.id

-- name: disable_endpoint
-- Disables an endpoint unless it is disabled.
update {hf}endpoint set disabled_at = {now}, disabled_reason = :reason
where id = :id and disabled_at is null
returning consumer, events

-- name: enable_endpoint
-- Enables an endpoint unless it is enabled.
update {hf}endpoint set disabled_at = null, disabled_reason = null
where id = :id and disabled_at is not null
returning consumer, events

-- name: forget_subscriptions
-- Removes a consumer's subscriptions, so that new ones can start now.
delete from {hf}subscription where consumer = :consumer

-- name: rotate_secret
-- Sets a new secret of an endpoint; the previous one stays valid for a limited time.
update {hf}endpoint
set previous_secret = secret, previous_until = {now} + :overlap, secret = :secret
where id = :id
returning id

-- name: serve_consumers
-- Updates the consumers that a worker serves.
update {hf}worker set consumers = :consumers where id = :worker
