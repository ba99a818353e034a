-- name: save_schedule
-- Adds or updates a schedule; its last occurrence stays.
insert into {hf}schedule (name, expression, tz, missed)
values (:name, :expression, :tz, :missed)
on conflict (name) do update set expression = excluded.expression, tz = excluded.tz, missed = excluded.missed

-- name: schedules
-- All schedules, their last occurrences, and the current time.
select s.name, s.expression, s.tz, s.missed, s.last_at, s.paused_at, {now} as now from {hf}schedule s order by s.name

-- name: advance_schedule
-- Advances a schedule, unless another scheduler already did.
update {hf}schedule set last_at = :occurrence
where name = :name and last_at = :last_at
returning name

-- name: pause_schedule
-- Pauses a schedule until it is resumed.
update {hf}schedule set paused_at = coalesce(paused_at, {now}) where name = :name returning name

-- name: resume_schedule
-- Resumes a schedule; occurrences during the pause count as missed.
update {hf}schedule set paused_at = null where name = :name and paused_at is not null returning name
