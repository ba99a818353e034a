-- fragment: done
(d.status = 'delivered' or (d.discarded_at is not null and d.error_type = 'superseded'))
and d.completed_at < now() - :older_than::interval and {of_no_live_run}
-- fragment: done_by_keep
(d.status = 'delivered' or (d.discarded_at is not null and d.error_type = 'superseded'))
and d.completed_at < now() - coalesce(
  (select make_interval(secs => c.keep) from {hf}consumer c where c.name = d.consumer), :older_than::interval)
and {of_no_live_run}
-- fragment: set_aside
d.status = 'failed' and d.discarded_at < now() - :older_than::interval and {of_no_live_run}
-- fragment: of_no_live_run
not exists (
  select 1 from {hf}workflow_run r
  where r.id = d.message_id and (r.ended_at is null or r.ended_at >= now() - :older_than::interval) offset 0)
and not exists (
  select 1 from {hf}job_group_member g
  join {hf}job_group_member w on w.group_id = g.group_id and w.stage = g.stage + 1
  join {hf}delivery n on n.id = w.delivery_id and n.status in ('pending', 'in_flight')
  where g.delivery_id = d.id offset 0)

-- name: delivery_window
-- The id that ends a batch: only a start and an order, so that no query plan sorts the whole table.
select d.id from {hf}delivery d where d.id >= :cursor::uuid order by d.id limit 1 offset {limit}

-- name: prune_deliveries
-- Removes old rows of a batch and their runs: delivered ones, or on request discarded ones. A row stays while a
-- catch-up of its consumer may still reach its message and create it again, or still has earlier messages, which the
-- mark would skip. The result of an earlier cycle goes with its row: without the row its fence means nothing.
with late as materialized (
  select s.consumer, s.since_epoch, s.mark_tx, s.mark_position,
         (select 1 from {hf}message p
          where (p.tx, p.position) > (s.mark_tx, s.mark_position) and p.tx < pg_snapshot_xmax(s.resumed)
            and p.sub_epoch < s.since_epoch and (s.from_start or not pg_visible_in_snapshot(p.tx, s.activated))
          order by p.tx, p.position limit 1) is not null as behind
  from {hf}subscription s where s.retired_at is null),
d as (
  delete from {hf}delivery d
  where d.id >= :cursor::uuid and d.id < :ceiling::uuid and {which}
    and not exists (
      select 1 from late l join {hf}message m on m.id = d.message_id
      where l.consumer = d.consumer
        and (l.behind
             or (m.sub_epoch < l.since_epoch and (m.tx, m.position) > (l.mark_tx, l.mark_position)))
      offset 0)
  returning d.id, d.message_id, d.consumer, d.fence),
r as (
  delete from {hf}run r
  where r.delivery_id >= :cursor::uuid and r.delivery_id < :ceiling::uuid
    and r.delivery_id in (select d.id from d)),
o as (
  delete from {hf}result o using d
  where o.delivery_id >= :cursor::uuid and o.delivery_id < :ceiling::uuid
    and o.delivery_id = d.id and o.fence <> d.fence),
c as (
  update {hf}consumer c set pruned_to = greatest(c.pruned_to, p.message_id)
  from (select d.consumer, (array_agg(d.message_id order by d.message_id desc))[1] as message_id
        from d group by d.consumer) p
  where c.name = p.consumer)
select d.id from d order by d.id

-- name: fill_failed_types
-- Adds the type to a batch of failed deliveries that workers of an older version settled.
update {hf}delivery d set failed_type = m.type
from {hf}message m
where m.id = d.message_id and d.status = 'failed'
  and d.id = any (array(select f.id from {hf}delivery f where f.status = 'failed' and f.failed_type is null
                        limit {limit} for update skip locked))
returning d.id

-- name: message_window
-- The id that ends a batch of messages.
select m.id from {hf}message m where m.id >= :cursor::uuid order by m.id limit 1 offset {limit}

-- name: prune_messages
-- Removes old messages of a batch that no delivery and no relay needs, with their handled keys; runs only on
-- request.
-- `offset 0` keeps the lookup of deliveries: as a join it would read the whole table.
with old as materialized (
  select m.id, m.source, m.key from {hf}message m
  where m.id >= :cursor::uuid and m.id < :ceiling::uuid and m.occurred_at < now() - :older_than::interval
    and not exists (
      select 1 from {hf}delivery d
      where d.message_id = m.id
        and d.id between (left(m.id::text, 18) || '-8000-000000000000')::uuid
                     and (left(m.id::text, 18) || '-bfff-ffffffffffff')::uuid
      offset 0)
    and not exists (
      select 1 from {hf}subscription s
      where s.retired_at is null and (s.mark_tx, s.mark_position) < (m.tx, m.position))
    and {relayed}
    and not exists (select 1 from {hf}workflow_run r where r.id = m.id offset 0)
  for update of m skip locked),
h as (
  delete from {hf}handled h using old where h.source = old.source and h.key = old.key),
d as (
  delete from {hf}message m
  where m.id >= :cursor::uuid and m.id < :ceiling::uuid and m.id in (select old.id from old)
  returning m.id)
select d.id from d order by d.id

-- name: prunable
-- The number of old rows that pruning would remove.
select count(*) from {hf}delivery d where d.id < :ceiling::uuid and {which}

-- name: shortest_keep
-- The shortest time for which a consumer keeps its delivered rows, in seconds; null if none declares it.
select min(c.keep) from {hf}consumer c
