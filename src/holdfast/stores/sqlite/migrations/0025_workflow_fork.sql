-- The run and the step that a fork began with.
alter table {hf}workflow_run add column forked_from text;
alter table {hf}workflow_run add column forked_step text;
create index {hf}workflow_run_fork on {hf}workflow_run (forked_from) where forked_from is not null;
