-- name: first_trace
-- The trace of the first recorded run of a delivery that has one.
select r.detail::json ->> 'traceparent' from {hf}run r
where r.delivery_id = :delivery_id::uuid and r.detail is not null order by r.fence limit 1
