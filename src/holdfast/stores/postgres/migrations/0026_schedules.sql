-- Schedules at run time, next to the declared ones. A scheduler evaluates a schedule when next_at is reached; last_at
-- decides which occurrences are due. For a single time (`at`), next_at is that time. revision changes with every
-- change of the schedule, so that a scheduler that was suspended does not fire an older version.
alter table {hf}schedule
  add column job      text,
  add column args     jsonb,
  add column declared boolean not null default true,
  add column next_at  timestamptz,
  add column revision bigint not null default 0;
update {hf}schedule set job = name, next_at = now();
create index schedule_due on {hf}schedule (job, next_at) where paused_at is null;
