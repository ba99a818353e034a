-- fragment: schedule_columns
name, coalesce(job, name) as job, args::text as args, expression, tz, missed, declared, last_at, next_at, paused_at,
revision, now() as now

-- name: save_schedule
-- Adds or updates a declared schedule, to be evaluated now; its last occurrence stays. No row if its name is taken at run time.
insert into {hf}schedule as s (name, job, expression, tz, missed, next_at)
values (:name::text, :name::text, :expression::text, :tz::text, :missed::text, now())
on conflict (name) do update
set job = excluded.job, expression = excluded.expression, tz = excluded.tz, missed = excluded.missed, next_at = now(),
    revision = s.revision + 1
where s.declared
returning s.name

-- name: put_schedule
-- Adds or changes a run-time schedule. A new timing starts now; no row if nothing changed, or if the name is declared.
insert into {hf}schedule as s (name, job, args, expression, tz, missed, declared, last_at, next_at)
values (:name::text, :job::text, :args::text::jsonb, :expression::text, :tz::text, :missed::text, false,
        :last_at::timestamptz, :next_at::timestamptz)
on conflict (name) do update
set job = excluded.job, args = excluded.args, expression = excluded.expression, tz = excluded.tz,
    missed = excluded.missed, revision = s.revision + 1,
    last_at = case when (s.expression, s.tz) = (excluded.expression, excluded.tz) then s.last_at
                   else excluded.last_at end,
    next_at = case when (s.expression, s.tz) = (excluded.expression, excluded.tz) and s.expression <> 'at' then s.next_at
                   else excluded.next_at end
where not s.declared
  and ((s.job, s.args, s.expression, s.tz, s.missed)
         is distinct from (excluded.job, excluded.args, excluded.expression, excluded.tz, excluded.missed)
       or s.expression = 'at' and s.next_at <> excluded.next_at)
returning s.name

-- name: schedule
-- One schedule, with the current time.
select {schedule_columns} from {hf}schedule where name = :name::text

-- name: schedules
-- A page of schedules by name, with the current time.
select {schedule_columns} from {hf}schedule where name > :after::text {where} order by name limit {limit}

-- fragment: where_schedule_job
and job = :job::text

-- fragment: where_schedule_prefix
and name >= :prefix::text and starts_with(name, :prefix::text)

-- name: due_schedules
-- The schedules of these jobs to be evaluated now, without a lock; the jobs are read in the given order.
select {schedule_columns}
from unnest(:jobs::text[]) wanted
cross join lateral (
  select s.* from {hf}schedule s
  where s.job = wanted and s.paused_at is null and s.next_at <= now()
  order by s.next_at limit {limit}) due
limit {limit}

-- name: has_schedules
-- Whether one of these jobs has a schedule that is not paused.
select exists (
  select 1 from unnest(:jobs::text[]) wanted
  cross join lateral (select 1 from {hf}schedule s where s.job = wanted and s.paused_at is null limit 1) found)

-- name: advance_schedules
-- Advances schedules that are unchanged since they were read; returns their names. One that another scheduler has locked
-- is skipped. The time-out ends the transaction of a scheduler that is suspended in it.
with mine as materialized (
  select s.name, g.reached, g.following
  from (select set_config('idle_in_transaction_session_timeout', '10000', true)) guard,
       unnest(:name::text[], :revision::bigint[], :last_at::timestamptz[], :reached::timestamptz[],
              :following::timestamptz[]) g (name, revision, last_at, reached, following)
  join {hf}schedule s on s.name = g.name
  where s.revision = g.revision and s.last_at = g.last_at and s.paused_at is null
  for update of s skip locked)
update {hf}schedule s set last_at = mine.reached, next_at = mine.following
from mine where s.name = mine.name
returning s.name

-- name: end_schedules
-- Removes schedules with a single time that are unchanged since they were read; returns their names.
with mine as materialized (
  select s.name
  from (select set_config('idle_in_transaction_session_timeout', '10000', true)) guard,
       unnest(:name::text[], :revision::bigint[], :last_at::timestamptz[]) g (name, revision, last_at)
  join {hf}schedule s on s.name = g.name
  where s.revision = g.revision and s.last_at = g.last_at and s.paused_at is null
  for update of s skip locked)
delete from {hf}schedule s using mine where s.name = mine.name
returning s.name

-- name: postpone_schedules
-- Evaluates these schedules again after a delay, so that those that fail do not displace others.
update {hf}schedule set next_at = now() + :delay::interval where name = any (:names::text[]) and expression <> 'at'

-- name: pause_schedule
-- Pauses a schedule until it is resumed.
update {hf}schedule set paused_at = coalesce(paused_at, now())
where name = :name::text
returning name

-- name: resume_schedule
-- Resumes a schedule; occurrences during the pause count as missed.
update {hf}schedule
set paused_at = null, next_at = case when expression = 'at' then next_at else now() end
where name = :name::text and paused_at is not null
returning name

-- name: remove_schedule
-- Removes a run-time schedule, or a declared one that no live worker declares.
delete from {hf}schedule s
where s.name = :name::text
  and (not s.declared
       or not exists (select 1 from {hf}worker w where w.alive_until > now() and s.name = any (w.consumers)))
returning s.name

-- name: overdue_schedules
-- Jobs whose schedules have been due for longer than a grace time, and whether a live worker serves the job.
select s.job, count(*), min(s.next_at), min(s.name), bool_or(s.declared) as declared,
       exists (select 1 from {hf}worker w where w.alive_until > now() and s.job = any (w.consumers)) as served
from {hf}schedule s
where s.paused_at is null and s.next_at < now() - :grace::interval
group by s.job order by min(s.next_at) limit {limit}
