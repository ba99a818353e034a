-- What became of the deliveries that a plan replayed: counted by result, and noted for each, as they are found ended.
-- `followed` is how far the current pass over those that have not ended has come.
alter table {hf}plan add column results text;
alter table {hf}plan add column followed integer not null default 0;
alter table {hf}plan add column settled_at timestamptz;
alter table {hf}plan_item add column result text;
create index plan_item_unsettled on {hf}plan_item (plan_id, n) where outcome = 'done' and result is null;
create index plan_item_dead on {hf}plan_item (plan_id, n) where result = 'dead';
