-- The version of the workflow whose form a result has, if it is not that of the run: newer code continued the run, and the
-- type of the step's result has changed since.
alter table {hf}workflow_step add column version integer;
