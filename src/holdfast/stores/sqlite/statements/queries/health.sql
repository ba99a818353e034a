-- name: lane_counts
-- The waiting deliveries by queue, consumer and generation; each half reads a partial index.
select w.queue, w.consumer, w.generation, sum(w.size) as size, min(w.oldest_at) as oldest_at from (
  select d.queue, d.consumer, d.generation, count(*) as size, min(d.run_at) as oldest_at
  from {hf}delivery d where d.status = 'pending' and not d.suspect group by d.queue, d.consumer, d.generation
  union all
  select d.queue, d.consumer, d.generation, count(*), min(d.run_at)
  from {hf}delivery d where d.status = 'pending' and d.suspect group by d.queue, d.consumer, d.generation) w
group by w.queue, w.consumer, w.generation
order by w.queue, w.consumer, w.generation

-- name: overdue
-- In-flight deliveries whose lease and worker lease expired more than the grace period ago; they should have been rescued.
select count(*), min(d.lease_until), {now}
from {hf}delivery d
left join {hf}worker w on w.id = d.locked_by
where d.status = 'in_flight' and d.lease_until < {now} - :grace and coalesce(w.alive_until < {now} - :grace, 1)

-- name: history_bound
-- Unfinished deliveries whose failure history is full, because they were replayed many times.
select d.id, d.consumer from {hf}delivery d
where d.failure_history <> '[]' and d.status <> 'delivered' and json_array_length(d.failure_history) >= :bound
order by d.id desc limit :limit

-- name: subscription_lag
-- The number of messages that each subscription still has to catch up on, within a bounded number of messages.
select s.pattern, s.consumer,
       (select count(*) filter (where l.sub_epoch < s.epoch)
        from (select m.sub_epoch from {hf}message m where m.position > s.mark_position
              order by m.position limit :limit) l) as behind
from {hf}subscription s where s.retired_at is null
order by s.pattern, s.consumer

-- name: server_settings
-- The SQLite settings that affect durability and health.
select 'journal_mode', journal_mode from pragma_journal_mode
union all
select 'synchronous', cast(synchronous as text) from pragma_synchronous
union all
select 'server_version', sqlite_version()

-- name: old_transactions
-- Returns nothing: SQLite does not list readers, and a write transaction excludes all others.
select 'session' as kind, '' as name, '' as application, '' as state, 0 as age where :older_than is null

-- name: table_health
-- Returns nothing: SQLite reuses the space of removed rows immediately.
select 'delivery' as "table", 0 as live, 0 as dead, null as vacuumed_at where 0
