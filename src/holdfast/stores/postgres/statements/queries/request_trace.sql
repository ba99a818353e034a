-- name: request_messages
-- The messages with a request id, oldest first, after a cursor.
select {message} from {hf}message m
where m.headers ->> 'request_id' = :request_id::text and m.id > :after::uuid order by m.id limit {limit}

-- fragment: where_audit_request
and a.request_id = :request_id::text

-- name: trail_deliveries
-- The first deliveries of each message, which are adjacent in the index.
select {delivery}, m.type, m.source, m.key
from unnest(:message_id::uuid[], :low::uuid[], :high::uuid[]) t (message_id, low, high)
cross join lateral (
  select d.* from {hf}delivery d
  where d.id between t.low and t.high and d.message_id = t.message_id order by d.id limit :most::bigint) d
join {hf}message m on m.id = t.message_id
left join {hf}consumer c on c.name = d.consumer
order by t.message_id, d.consumer

-- name: trail_runs
-- The last recorded attempts of each delivery, newest first.
select t.delivery_id, r.attempt, r.fence, r.outcome, r.error_type, r.error, r.trace, r.worker, r.started_at, r.completed_at,
       r.detail, r.generation
from unnest(:delivery_id::uuid[]) t (delivery_id)
cross join lateral (
  select r.* from {hf}run r where r.delivery_id = t.delivery_id order by r.fence desc limit :most::bigint) r
order by t.delivery_id, r.fence desc

-- name: trail_audit
-- The newest audit entries of each delivery.
select a.id, a.at, a.actor, a.action, a.kind, a.target, a.reason, a.detail::text, a.request_id, a.plan_id
from unnest(:delivery_id::uuid[]) t (delivery_id)
cross join lateral (
  select a.* from {hf}audit a
  where a.kind = 'delivery' and a.target = t.delivery_id::text order by a.id desc limit :most::bigint) a
order by a.id desc
