-- name: request_messages
-- The messages with a request id, oldest first, after a cursor.
select {message} from {hf}message m
where json_extract(m.headers, '$.request_id') = :request_id and m.id > :after order by m.id limit :limit

-- fragment: where_audit_request
and a.request_id = :request_id

-- name: trail_deliveries
-- The first deliveries of each message, which are adjacent in the index.
-- each: messages
select {delivery}, m.type, m.source, m.key
from {hf}delivery d join {hf}message m on m.id = d.message_id left join {hf}consumer c on c.name = d.consumer
where d.id between :low and :high and d.message_id = :message_id
order by d.id limit :most

-- name: trail_runs
-- The last recorded attempts of each delivery, newest first.
-- each: deliveries
select r.delivery_id, r.attempt, r.fence, r.outcome, r.error_type, r.error, r.trace, r.worker, r.started_at, r.completed_at,
       r.detail, r.generation
from {hf}run r where r.delivery_id = :delivery_id order by r.fence desc limit :most

-- name: trail_audit
-- The newest audit entries of each delivery.
-- each: deliveries
select a.id, a.at, a.actor, a.action, a.kind, a.target, a.reason, a.detail, a.request_id, a.plan_id
from {hf}audit a where a.kind = 'delivery' and a.target = :delivery_id order by a.id desc limit :most
