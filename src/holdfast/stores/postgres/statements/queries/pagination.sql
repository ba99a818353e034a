-- name: far_delivery
-- The delivery at the end of a range below an id, by an index in the order of ids.
select d.id from {hf}delivery d where true {where} order by d.id desc limit 1 offset {limit}

-- name: far_message
-- The message at the end of a range below an id.
select m.id from {hf}message m where true {where} order by m.id desc limit 1 offset {limit}

-- name: unfinished_deliveries
-- The newest deliveries in these states below an id, from partial indexes only, and how many there are up to a bound.
with few as materialized (
  select d.id from {hf}delivery d
  where d.status = 'pending' and not d.suspect and 'pending' = any (:statuses::text[]) {narrow}
  union all
  select d.id from {hf}delivery d
  where d.status = 'pending' and d.suspect and 'pending' = any (:statuses::text[]) {narrow}
  union all
  select d.id from {hf}delivery d
  where d.status = 'in_flight' and 'in_flight' = any (:statuses::text[]) {narrow}
  limit :bound::bigint)
select s.size, n.id
from (select count(*) as size from few) s left join (
  select f.id from few f where :before::uuid is null or f.id < :before::uuid order by f.id desc limit {limit}) n on true
order by n.id desc

-- name: untyped_failures
-- Whether a failed delivery lacks its type: one that a worker of an older version settled. The order lets PostgreSQL use
-- the index: most rows of the table have no type, so that it would expect to find one at once by a scan.
select 1 from {hf}delivery d where d.status = 'failed' and d.failed_type is null
order by d.failed_type, d.id limit 1

-- name: failed_types
-- The types of failed deliveries, by a loose index scan that ends at a bound.
with recursive value as (
  (select d.failed_type as name, 1 as n from {hf}delivery d
   where d.status = 'failed' and d.failed_type is not null order by d.failed_type limit 1)
  union all
  select x.failed_type, v.n + 1 from value v cross join lateral (
    select d.failed_type from {hf}delivery d
    where d.status = 'failed' and d.failed_type > v.name order by d.failed_type limit 1) x
  where v.n < {limit})
select v.name from value v

-- name: failed_error_types
-- The error types of failed deliveries, by a loose index scan that ends at a bound.
with recursive value as (
  (select d.error_type as name, 1 as n from {hf}delivery d
   where d.status = 'failed' and d.error_type is not null order by d.error_type limit 1)
  union all
  select x.error_type, v.n + 1 from value v cross join lateral (
    select d.error_type from {hf}delivery d
    where d.status = 'failed' and d.error_type > v.name order by d.error_type limit 1) x
  where v.n < {limit})
select v.name from value v

-- fragment: where_failed_type_indexed
and d.failed_type = :type::text
-- fragment: where_error_type_indexed
and d.error_type = :error_type::text
-- fragment: where_only_failed
and coalesce(d.status, (select t.type from {hf}message t where t.id = d.message_id)) = 'failed'
-- fragment: where_from
and d.id >= :lowest::uuid
-- fragment: where_message_from
and m.id >= :lowest::uuid
-- fragment: where_type_looked_up
and (select t.type from {hf}message t where t.id = d.message_id) = :type::text
-- fragment: where_type_below_looked_up
and starts_with((select t.type from {hf}message t where t.id = d.message_id), :type_prefix::text)
-- fragment: where_consumers_looked_up
and d.consumer = any (:consumers::text[])
