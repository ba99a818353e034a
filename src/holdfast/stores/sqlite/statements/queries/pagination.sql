-- name: far_delivery
-- The delivery at the end of a range below an id, by an index in the order of ids.
select d.id from {hf}delivery d where true {where} order by d.id desc limit 1 offset :limit

-- name: far_message
-- The message at the end of a range below an id.
select m.id from {hf}message m where true {where} order by m.id desc limit 1 offset :limit

-- name: unfinished_deliveries
-- Some deliveries in these states, from partial indexes only, unordered.
select d.id from {hf}delivery d
where d.status = 'pending' and not d.suspect and 'pending' in (select value from json_each(:statuses)) {narrow}
union all
select d.id from {hf}delivery d
where d.status = 'pending' and d.suspect and 'pending' in (select value from json_each(:statuses)) {narrow}
union all
select d.id from {hf}delivery d
where d.status = 'in_flight' and 'in_flight' in (select value from json_each(:statuses)) {narrow}
limit :limit

-- name: untyped_failures
-- Whether a failed delivery lacks its type: one that a worker of an older version settled.
select 1 from {hf}delivery d where d.status = 'failed' and d.failed_type is null limit 1

-- fragment: where_failed_type_indexed
and d.failed_type = :type
-- fragment: where_only_failed
and d.status = 'failed'
-- fragment: where_from
and d.id >= :lowest
-- fragment: where_message_from
and m.id >= :lowest
-- fragment: where_type_looked_up
and (select t.type from {hf}message t where t.id = d.message_id) = :type
-- fragment: where_type_below_looked_up
and substr((select t.type from {hf}message t where t.id = d.message_id), 1, length(:type_prefix)) = :type_prefix
-- fragment: where_consumers_looked_up
and +d.consumer in (select value from json_each(:consumers))
