-- name: search_deliveries
-- The deliveries of a range that contain a text in any column, newest first. Cheap columns are compared first. Ciphertext
-- is not searched: a short text would match by chance.
select d.id
from {hf}delivery d join {hf}message m on m.id = d.message_id
where (instr(lower(d.id || ' ' || d.message_id || ' ' || d.consumer || ' ' || m.type || ' ' || coalesce(m.key, '') || ' '
             || coalesce(d.error_type, '') || ' ' || coalesce(d.last_error, '')), :text) > 0
       or instr(lower(m.headers), :text) > 0
       or (substr(m.payload, 1, 13) <> '{"$encrypted"' and instr(lower(m.payload), :text) > 0))
  {where}
order by d.id desc limit :limit

-- fragment: where_not_dead
and (d.status <> 'failed' or d.discarded_at is not null)

-- name: deliveries_by_range
-- The newest deliveries between two ids.
select d.id from {hf}delivery d where d.id between :low and :high order by d.id desc limit :limit

-- name: deliveries_of_messages
-- The deliveries of these messages, which are adjacent in the index.
select d.id
from json_each(:ids) g
join {hf}delivery d on d.id between substr(g.value, 1, 18) || '-8000-000000000000'
                                and substr(g.value, 1, 18) || '-bfff-ffffffffffff' and d.message_id = g.value
limit :limit
