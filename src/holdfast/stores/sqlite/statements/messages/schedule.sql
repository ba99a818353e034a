-- fragment: schedule_columns
name, coalesce(job, name) as job, args, expression, tz, missed, declared, last_at, next_at, paused_at, revision,
{now} as now

-- name: save_schedule
-- Adds or updates a declared schedule, to be evaluated now; its last occurrence stays. No row if its name is taken at run time.
insert into {hf}schedule (name, job, expression, tz, missed, next_at)
values (:name, :name, :expression, :tz, :missed, {now})
on conflict (name) do update
set job = excluded.job, expression = excluded.expression, tz = excluded.tz, missed = excluded.missed, next_at = {now},
    revision = revision + 1
where declared
returning name

-- name: put_schedule
-- Adds or changes a run-time schedule. A new timing starts now; no row if nothing changed, or if the name is declared.
insert into {hf}schedule (name, job, args, expression, tz, missed, declared, last_at, next_at)
values (:name, :job, :args, :expression, :tz, :missed, 0, :last_at, :next_at)
on conflict (name) do update
set job = excluded.job, args = excluded.args, expression = excluded.expression, tz = excluded.tz,
    missed = excluded.missed, revision = revision + 1,
    last_at = case when (expression, tz) = (excluded.expression, excluded.tz) then last_at
                   else excluded.last_at end,
    next_at = case when (expression, tz) = (excluded.expression, excluded.tz) and expression <> 'at' then next_at
                   else excluded.next_at end
where not declared
  and ((job, args, expression, tz, missed)
         is not (excluded.job, excluded.args, excluded.expression, excluded.tz, excluded.missed)
       or expression = 'at' and next_at <> excluded.next_at)
returning name

-- name: schedule
-- One schedule, with the current time.
select {schedule_columns} from {hf}schedule where name = :name

-- name: schedules
-- A page of schedules by name, with the current time.
select {schedule_columns} from {hf}schedule where name > :after {where} order by name limit :limit

-- fragment: where_schedule_job
and job = :job

-- fragment: where_schedule_prefix
and name >= :prefix and substr(name, 1, length(:prefix)) = :prefix

-- name: due_schedules
-- The schedules of these jobs to be evaluated now, without a lock; the jobs are read in the given order.
select {schedule_columns}
from json_each(:jobs) wanted cross join {hf}schedule
where job = wanted.value and paused_at is null and next_at <= {now}
limit :limit

-- name: has_schedules
-- Whether one of these jobs has a schedule that is not paused.
select exists (
  select 1 from json_each(:jobs) wanted cross join {hf}schedule where job = wanted.value and paused_at is null)

-- name: advance_schedules
-- Advances schedules that are unchanged since they were read; returns their names.
-- each: schedules
update {hf}schedule set last_at = :reached, next_at = :following
where name = :name and revision = :revision and last_at = :last_at and paused_at is null
returning name

-- name: end_schedules
-- Removes schedules with a single time that are unchanged since they were read; returns their names.
-- each: schedules
delete from {hf}schedule where name = :name and revision = :revision and last_at = :last_at and paused_at is null
returning name

-- name: postpone_schedules
-- Evaluates these schedules again after a delay, so that those that fail do not displace others.
update {hf}schedule set next_at = {now} + :delay
where name in (select value from json_each(:names)) and expression <> 'at'

-- name: pause_schedule
-- Pauses a schedule until it is resumed.
update {hf}schedule set paused_at = coalesce(paused_at, {now})
where name = :name
returning name

-- name: resume_schedule
-- Resumes a schedule; occurrences during the pause count as missed.
update {hf}schedule
set paused_at = null, next_at = case when expression = 'at' then next_at else {now} end
where name = :name and paused_at is not null
returning name

-- name: remove_schedule
-- Removes a run-time schedule, or a declared one that no live worker declares.
delete from {hf}schedule
where name = :name
  and (not declared
       or not exists (select 1 from {hf}worker w
                      where w.alive_until > {now} and name in (select value from json_each(w.consumers))))
returning name

-- name: overdue_schedules
-- Jobs whose schedules have been due for longer than a grace time, and whether a live worker serves the job.
select s.job, count(*), min(s.next_at), min(s.name), max(s.declared) as declared,
       exists (select 1 from {hf}worker w
               where w.alive_until > {now} and s.job in (select value from json_each(w.consumers))) as served
from {hf}schedule s
where s.paused_at is null and s.next_at < {now} - :grace
group by s.job order by min(s.next_at) limit :limit
