-- The results of the deliveries that a plan replayed: counted by result, and recorded for each delivery.
-- `followed` is the position of the current pass over the deliveries without a result.
alter table {hf}plan add column results text;
alter table {hf}plan add column followed integer not null default 0;
alter table {hf}plan add column settled_at integer;
alter table {hf}plan_item add column result text;
create index {hf}plan_item_unsettled on {hf}plan_item (plan_id, n) where outcome = 'done' and result is null;
create index {hf}plan_item_dead on {hf}plan_item (plan_id, n) where result = 'dead';
