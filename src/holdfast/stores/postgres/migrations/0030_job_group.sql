-- Groups of jobs in stages: a job of a later stage is a pending delivery that waits until the stage before has ended. The
-- state of a group is the state of its deliveries, so nothing is counted here and no settlement writes here.
create table {hf}job_group (
  id           uuid primary key,
  label        text not null,
  key          text unique,
  created_at   timestamptz not null default now(),
  cancelled_at timestamptz
);

create table {hf}job_group_member (
  group_id    uuid not null,
  stage       integer not null,
  position    integer not null,
  delivery_id uuid not null,
  message_id  uuid not null,
  consumer    text not null,
  input       text check (input in ('result', 'results')),        -- what a job of a later stage receives
  on_failure  text check (on_failure in ('run', 'skip', 'dead')),
  decided_at  timestamptz,                                        -- when it was released; from then on it never waits again
  primary key (group_id, stage, position)
);
create index job_group_member_delivery on {hf}job_group_member (delivery_id);
