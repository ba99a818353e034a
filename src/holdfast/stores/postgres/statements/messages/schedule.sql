-- name: save_schedule
-- Adds or updates a schedule; its last occurrence stays.
insert into {hf}schedule (name, expression, tz, missed)
values (:name::text, :expression::text, :tz::text, :missed::text)
on conflict (name) do update set expression = excluded.expression, tz = excluded.tz, missed = excluded.missed

-- name: schedules
-- All schedules, their last occurrences, and the current time.
select s.name, s.expression, s.tz, s.missed, s.last_at, s.paused_at, now() as now from {hf}schedule s order by s.name

-- name: advance_schedule
-- Advances a schedule, unless another scheduler already did.
update {hf}schedule set last_at = :occurrence::timestamptz
where name = :name::text and last_at = :last_at::timestamptz
returning name

-- name: pause_schedule
-- Pauses a schedule until it is resumed.
update {hf}schedule set paused_at = coalesce(paused_at, now()) where name = :name::text returning name

-- name: resume_schedule
-- Resumes a schedule; occurrences during the pause count as missed.
update {hf}schedule set paused_at = null where name = :name::text and paused_at is not null returning name
