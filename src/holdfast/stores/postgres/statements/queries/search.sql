-- name: search_deliveries
-- The deliveries of a range that contain a text in any column, newest first. Cheap columns are compared first. Ciphertext
-- is not searched: a short text would match by chance.
select d.id
from {hf}delivery d join {hf}message m on m.id = d.message_id
where (position(:text::text in lower(concat_ws(' ', d.id, d.message_id, d.consumer, m.type, m.key, d.error_type,
                                               d.last_error))) > 0
       or position(:text::text in lower(m.headers::text)) > 0
       or (not m.payload ? '$encrypted' and position(:text::text in lower(m.payload::text)) > 0))
  {where}
order by d.id desc limit {limit}

-- fragment: where_not_dead
and (d.status <> 'failed' or d.discarded_at is not null)

-- name: deliveries_by_range
-- The newest deliveries between two ids.
select d.id from {hf}delivery d where d.id between :low::uuid and :high::uuid order by d.id desc limit {limit}

-- name: deliveries_of_messages
-- The deliveries of these messages, which are adjacent in the index.
select d.id
from unnest(:ids::uuid[]) g (id)
cross join lateral (
  select d.id from {hf}delivery d
  where d.id between (left(g.id::text, 18) || '-8000-000000000000')::uuid
                 and (left(g.id::text, 18) || '-bfff-ffffffffffff')::uuid and d.message_id = g.id) d
limit {limit}
