-- name: isolation
-- How much a caller's transaction sees of what others commit: one that writes is the only one that does.
select 'read committed'

-- name: add_endpoint
-- Stores an endpoint; its consumer and subscriptions are registered in the same transaction.
insert into {hf}endpoint (id, consumer, url, tenant, events, headers, secret, rate, concurrency)
values (:id, :consumer, :url, :tenant, :events, :headers, :secret, :rate, :concurrency)

-- name: endpoints
-- Every endpoint with what its consumer declared; a previous secret only while it is still valid.
select e.id, e.consumer, e.url, e.tenant, e.events, e.headers, e.secret,
       case when e.previous_until > {now} then e.previous_secret end,
       case when e.previous_until > {now} then e.previous_until end,
       e.rate, e.concurrency, e.created_at, e.disabled_at, e.disabled_reason, c.queue, c.priority, c.retry
from {hf}endpoint e join {hf}consumer c on c.name = e.consumer
order by e.created_at, e.id

-- name: listed_endpoints
-- Every endpoint as `endpoints` has it, without its secrets: for a role that may not read them.
select e.id, e.consumer, e.url, e.tenant, e.events, e.headers, null, null,
       case when e.previous_until > {now} then e.previous_until end,
       e.rate, e.concurrency, e.created_at, e.disabled_at, e.disabled_reason, c.queue, c.priority, c.retry
from {hf}endpoint e join {hf}consumer c on c.name = e.consumer
order by e.created_at, e.id

-- name: disable_endpoint
-- Marks an endpoint disabled, unless it is.
update {hf}endpoint set disabled_at = {now}, disabled_reason = :reason
where id = :id and disabled_at is null
returning consumer, events

-- name: enable_endpoint
-- Marks an endpoint enabled again, unless it is.
update {hf}endpoint set disabled_at = null, disabled_reason = null
where id = :id and disabled_at is not null
returning consumer, events

-- name: forget_subscriptions
-- Removes a consumer's subscriptions, to be made anew from now on.
delete from {hf}subscription where consumer = :consumer

-- name: rotate_secret
-- Gives an endpoint a new secret; the one before stays valid for a while.
update {hf}endpoint
set previous_secret = secret, previous_until = {now} + :overlap, secret = :secret
where id = :id
returning id

-- name: living_workers
-- How many workers share a limit.
select count(*) from {hf}worker w where w.alive_until > {now}

-- name: serve_consumers
-- Says anew which consumers a worker serves.
update {hf}worker set consumers = :consumers where id = :worker
