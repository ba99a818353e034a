-- The start of the outage that blocks a consumer: the longer it lasts, the longer the pause between two trials.
alter table {hf}consumer add column blocked_at timestamptz;
