-- name: lane_counts
-- The waiting deliveries by queue, consumer and generation; each half reads a partial index.
select w.queue, w.consumer, w.generation, sum(w.size)::bigint as size, min(w.oldest_at) as oldest_at from (
  select d.queue, d.consumer, d.generation, count(*) as size, min(d.run_at) as oldest_at
  from {hf}delivery d where d.status = 'pending' and not d.suspect group by d.queue, d.consumer, d.generation
  union all
  select d.queue, d.consumer, d.generation, count(*), min(d.run_at)
  from {hf}delivery d where d.status = 'pending' and d.suspect group by d.queue, d.consumer, d.generation) w
group by w.queue, w.consumer, w.generation
order by w.queue, w.consumer, w.generation

-- name: overdue
-- In-flight deliveries whose lease and worker lease expired more than the grace period ago; they should have been rescued.
select count(*), min(d.lease_until), now()
from {hf}delivery d
left join {hf}worker w on w.id = d.locked_by
where d.status = 'in_flight' and d.lease_until < now() - :grace::interval
  and coalesce(w.alive_until < now() - :grace::interval, true)

-- name: history_bound
-- Unfinished deliveries whose failure history is full, because they were replayed many times.
select d.id, d.consumer from {hf}delivery d
where d.failure_history <> '[]'::jsonb and d.status <> 'delivered' and jsonb_array_length(d.failure_history) >= :bound::integer
order by d.id desc limit {limit}

-- name: subscription_lag
-- The number of messages that each subscription still has to catch up on, within a bounded number of messages.
select s.pattern, s.consumer,
       (select count(*) filter (where l.sub_epoch < s.epoch)
        from (select m.sub_epoch from {hf}message m
              where (m.tx, m.position) > (s.mark_tx, s.mark_position)
                and m.tx < pg_snapshot_xmin(pg_current_snapshot())
              order by m.tx, m.position limit {limit}) l) as behind
from {hf}subscription s where s.retired_at is null
order by s.pattern, s.consumer

-- name: server_settings
-- The server settings that affect durability and health.
select s.name, s.setting from pg_settings s
where s.name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
                 'default_transaction_isolation', 'idle_in_transaction_session_timeout', 'server_version',
                 'default_transaction_read_only')
order by s.name

-- name: old_transactions
-- What prevents the removal of dead rows: old transactions, prepared transactions and replication slots.
select 'session' as kind, a.pid::text as name, coalesce(a.application_name, '') as application,
       coalesce(a.state, '') as state, now() - a.xact_start as age
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  and a.xact_start < now() - :older_than::interval
union all
select 'prepared', p.gid, p.owner::text, 'prepared', now() - p.prepared
from pg_prepared_xacts p where p.database = current_database() and p.prepared < now() - :older_than::interval
union all
select 'slot', s.slot_name::text, coalesce(s.plugin::text, 'physical'), case when s.active then 'active' else 'inactive' end, null
from pg_replication_slots s where s.xmin is not null and age(s.xmin) > 1000000
order by 5 desc nulls last

-- name: table_health
-- Live and dead rows of the table with the most writes, and its last vacuum.
select s.relname::text as table, s.n_live_tup as live, s.n_dead_tup as dead,
       greatest(s.last_autovacuum, s.last_vacuum) as vacuumed_at
from pg_stat_all_tables s where s.relid = '{hf}delivery'::regclass
