-- Each replay is a plan, so the plans without complete results are found by an index.
create index {hf}plan_unsettled on {hf}plan (id) where action = 'replay' and settled_at is null;
