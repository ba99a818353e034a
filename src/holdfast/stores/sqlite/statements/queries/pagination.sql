-- name: far_delivery
-- The delivery at the end of a range below an id, by an index in the order of ids.
select d.id from {hf}delivery d where true {where} order by d.id desc limit 1 offset :limit

-- name: far_message
-- The message at the end of a range below an id.
select m.id from {hf}message m where true {where} order by m.id desc limit 1 offset :limit

-- name: unfinished_deliveries
-- The newest deliveries in these states below an id, from partial indexes only, and how many there are up to a bound.
with few as materialized (
  select d.id from {hf}delivery d
  where d.status = 'pending' and not d.suspect and 'pending' in (select value from json_each(:statuses)) {narrow}
  union all
  select d.id from {hf}delivery d
  where d.status = 'pending' and d.suspect and 'pending' in (select value from json_each(:statuses)) {narrow}
  union all
  select d.id from {hf}delivery d
  where d.status = 'in_flight' and 'in_flight' in (select value from json_each(:statuses)) {narrow}
  limit :bound)
select s.size, n.id
from (select count(*) as size from few) s left join (
  select f.id from few f where :before is null or f.id < :before order by f.id desc limit :limit) n on true
order by n.id desc

-- name: untyped_failures
-- Whether a failed delivery lacks its type: one that a worker of an older version settled.
select 1 from {hf}delivery d where d.status = 'failed' and d.failed_type is null limit 1

-- name: failed_types
-- The types of failed deliveries, by a loose index scan that ends at a bound.
with recursive value(name) as (
  select min(d.failed_type) from {hf}delivery d where d.status = 'failed'
  union all
  select (select min(d.failed_type) from {hf}delivery d where d.status = 'failed' and d.failed_type > v.name)
  from value v where v.name is not null
  limit :limit)
select v.name from value v where v.name is not null

-- name: failed_error_types
-- The error types of failed deliveries, by a loose index scan that ends at a bound.
with recursive value(name) as (
  select min(d.error_type) from {hf}delivery d where d.status = 'failed'
  union all
  select (select min(d.error_type) from {hf}delivery d where d.status = 'failed' and d.error_type > v.name)
  from value v where v.name is not null
  limit :limit)
select v.name from value v where v.name is not null

-- fragment: where_failed_type_indexed
and d.failed_type = :type
-- fragment: where_error_type_indexed
and d.error_type = :error_type
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
