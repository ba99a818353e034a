-- fragment: log_matches
m.sub_epoch < 9223372036854775807
    and (:every::boolean or m.type = any (:types::text[])
         or exists (select 1 from unnest(:prefixes::text[]) p (prefix) where starts_with(m.type, p.prefix)))

-- fragment: log_step
select m.tx, m.position from {hf}message m
    where m.tx >= pg_snapshot_xmax(:done::text::pg_snapshot)
      and pg_visible_in_snapshot(m.tx, coalesce(:target::text::pg_snapshot, pg_current_snapshot()))
      and m.position > :position::bigint
    union all
    select o.tx, m.position from pg_snapshot_xip(:done::text::pg_snapshot) o (tx)
    cross join lateral (select l.position from {hf}message l where l.tx = o.tx order by l.position offset 0) m
    where pg_visible_in_snapshot(o.tx, coalesce(:target::text::pg_snapshot, pg_current_snapshot()))
      and m.position > :position::bigint

-- name: log_end
-- The current snapshot, and whether this cursor or a stored message is from a server with higher transaction ids.
select pg_current_snapshot()::text, 0, coalesce(n.tx::text, ''),
       pg_snapshot_xmax(:done::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot())
       or coalesce(n.tx >= pg_snapshot_xmax(pg_current_snapshot()), false)
from (select 1) one
left join lateral (select m.tx from {hf}message m order by m.tx desc, m.position desc limit 1) n on true

-- fragment: log_message
select m.id, m.type, m.payload, m.occurred_at, m.sub_epoch
    from {hf}message m where m.tx = s.tx and m.position = s.position offset 0

-- name: log_ahead
-- The next matching messages of a step by position, and the position reached. A step contains the
-- messages that are visible in this snapshot and not in the previous one: those of the transactions that were open then
-- and of later ones. Each transaction is a range of the index. `offset 0` keeps the index lookups; the planner would turn
-- them into joins that read the whole table for one new message.
with step as materialized (
  select s.tx, s.position from ({log_step}) s order by s.position limit {limit})
select s.position, case when {log_matches} then m.id end, pg_column_size(m.payload), (select count(*) from step)
from step s cross join lateral ({log_message}) m
where {log_matches} or s.position = (select max(l.position) from step l)
order by s.position

-- name: log_behind
-- The number of matching messages after a cursor and the oldest of them, within a bounded number of messages.
with step as materialized (select s.tx, s.position from ({log_step}) s limit {limit})
select count(*), min(m.occurred_at), (select count(*) from step), now()
from step s cross join lateral ({log_message}) m
where {log_matches}
