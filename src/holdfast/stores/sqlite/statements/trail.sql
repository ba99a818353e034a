-- name: request_messages
-- The messages that carry a request id, oldest first.
select {message} from {hf}message m
where json_extract(m.headers, '$.request_id') = :request_id order by m.id limit :limit

-- fragment: where_audit_request
and a.request_id = :request_id
