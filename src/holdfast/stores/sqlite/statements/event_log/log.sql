-- fragment: log_matches
m.sub_epoch < 9223372036854775807
    and (:every or m.type in (select value from json_each(:types))
         or exists (select 1 from json_each(:prefixes) p where substr(m.type, 1, length(p.value)) = p.value))

-- fragment: log_step
select m.position from {hf}message m where m.position > :position

-- name: log_end
-- The newest message; SQLite has one writer at a time, so positions are in the order of commits.
select '', coalesce(max(m.position), 0), '', 0 from {hf}message m

-- fragment: log_message
{hf}message m on m.position = s.position

-- name: log_ahead
-- The next matching messages by position, and the position reached.
with step as materialized ({log_step} order by m.position limit :limit)
select m.position, case when {log_matches} then m.id end, length(m.payload), (select count(*) from step)
from step s join {log_message}
where {log_matches} or m.position = (select max(l.position) from step l)
order by m.position

-- name: log_behind
-- The number of matching messages after a cursor and the oldest of them, within a bounded number of messages.
with step as materialized ({log_step} order by m.position limit :limit)
select count(*), min(m.occurred_at), (select count(*) from step), {now}
from step s join {log_message}
where {log_matches}
