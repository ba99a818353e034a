-- name: first_trace
-- The trace of the first recorded run of a delivery that has one.
select json_extract(r.detail, '$.traceparent') from {hf}run r
where r.delivery_id = :delivery_id and r.detail is not null order by r.fence limit 1
