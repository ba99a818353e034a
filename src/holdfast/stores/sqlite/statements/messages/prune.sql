-- fragment: done
(d.status = 'delivered' or (d.discarded_at is not null and d.error_type = 'superseded'))
and d.completed_at < {now} - :older_than and {of_no_live_run}
-- fragment: done_by_keep
(d.status = 'delivered' or (d.discarded_at is not null and d.error_type = 'superseded'))
and d.completed_at < {now} - coalesce((select c.keep * 1000 from {hf}consumer c where c.name = d.consumer), :older_than)
and {of_no_live_run}
-- fragment: set_aside
d.status = 'failed' and d.discarded_at < {now} - :older_than and {of_no_live_run}
-- fragment: of_no_live_run
not exists (
  select 1 from {hf}workflow_run r
  where r.id = d.message_id and (r.ended_at is null or r.ended_at >= {now} - :older_than))
and not exists (
  select 1 from {hf}job_group_member g
  join {hf}job_group_member w on w.group_id = g.group_id and w.stage = g.stage + 1
  join {hf}delivery n on n.id = w.delivery_id and n.status in ('pending', 'in_flight')
  where g.delivery_id = d.id)

-- name: delivery_window
-- The id that ends a batch.
select d.id from {hf}delivery d where d.id >= :cursor order by d.id limit 1 offset :limit

-- name: prune_deliveries
-- Removes old rows of a batch and their runs: delivered ones, or on request discarded ones. A row stays while a
-- catch-up of its consumer may still reach its message and create it again, or still has earlier messages, which the
-- mark would skip. The result of an earlier cycle goes with its row: without the row its fence means nothing.
-- once
delete from {hf}delivery as d
where d.id >= :cursor and d.id < :ceiling and {which}
  and not exists (
    select 1 from {hf}subscription s join {hf}message m on m.id = d.message_id
    where s.consumer = d.consumer and s.retired_at is null
      and ((m.sub_epoch < s.since_epoch and m.position > s.mark_position)
           or exists (
             select 1 from {hf}message p
             where p.position > s.mark_position and p.position <= s.resumed and p.sub_epoch < s.since_epoch)))
returning id, message_id, consumer, fence;
-- each: returned
delete from {hf}run where delivery_id = :id;
delete from {hf}result where delivery_id = :id and fence <> :fence;
update {hf}consumer set pruned_to = max(coalesce(pruned_to, ''), :message_id) where name = :consumer

-- name: fill_failed_types
-- Adds the type to a batch of failed deliveries that workers of an older version settled.
update {hf}delivery set failed_type = (select m.type from {hf}message m where m.id = message_id)
where id in (select f.id from {hf}delivery f where f.status = 'failed' and f.failed_type is null limit :limit)
returning id

-- name: message_window
-- The id that ends a batch of messages.
select m.id from {hf}message m where m.id >= :cursor order by m.id limit 1 offset :limit

-- name: prune_messages
-- Removes old messages of a batch that no delivery and no relay needs, with their handled keys; runs only on
-- request.
-- once
delete from {hf}message as m
where m.id >= :cursor and m.id < :ceiling and m.occurred_at < {now} - :older_than
  and not exists (
    select 1 from {hf}delivery d
    where d.message_id = m.id and d.id between substr(m.id, 1, 18) || '-8000-000000000000'
                                          and substr(m.id, 1, 18) || '-bfff-ffffffffffff')
  and not exists (
    select 1 from {hf}subscription s where s.retired_at is null and s.mark_position < m.position)
  and {relayed}
  and not exists (select 1 from {hf}workflow_run r where r.id = m.id)
returning id, source, key;
-- each: returned
delete from {hf}handled where source = :source and key = :key

-- name: prunable
-- The number of old rows that pruning would remove.
select count(*) from {hf}delivery d where d.id < :ceiling and {which}

-- name: shortest_keep
-- The shortest time for which a consumer keeps its delivered rows, in seconds; null if none declares it.
select min(c.keep) from {hf}consumer c
