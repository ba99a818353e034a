-- Schedules at run time, next to the declared ones. A scheduler evaluates a schedule when next_at is reached; last_at
-- decides which occurrences are due. For a single time (`at`), next_at is that time. revision changes with every
-- change of the schedule, so that a scheduler that was suspended does not fire an older version.
alter table {hf}schedule add column job text;
alter table {hf}schedule add column args text;
alter table {hf}schedule add column declared integer not null default 1;
alter table {hf}schedule add column next_at integer;
alter table {hf}schedule add column revision integer not null default 0;
update {hf}schedule set job = name, next_at = {now};
create index {hf}schedule_due on {hf}schedule (job, next_at) where paused_at is null;
