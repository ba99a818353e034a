-- Projectors: consumers whose result can be rebuilt from the event store. Until `held_until` no worker claims
-- their deliveries; this hold of a rebuild is separate from an operator's pause. Every claim reads this table, so
-- the cursor of a rebuild, which changes with each event, is in the table of positions.
create table {hf}projector (
  name          text primary key references {hf}consumer (name),
  registered_at integer not null default ({now}),
  held_until    integer,
  state         text check (state in ('running', 'stopped', 'done')),
  online        integer,
  asked_by      text,
  reason        text,
  total         integer,
  applied       integer,
  error         text,
  started_at    integer,
  ended_at      integer
);

-- The consumer of a run, so that the last run of a consumer is found by an index.
alter table {hf}run add column consumer text;
create index {hf}run_consumer on {hf}run (consumer, completed_at) where consumer is not null;

-- Inserting here moves a rebuild's cursor in the transaction that applied the event, or undoes that transaction: from
-- one place to the next, once.
create view {hf}rebuild_checkpoint as
  select name, fence, cursor as before, cursor as reached, lease_until as lease from {hf}position;
create trigger {hf}rebuild_checkpoint_insert instead of insert on {hf}rebuild_checkpoint
begin
  select raise(rollback, 'holdfast: lease lost')
  where not exists (
    select 1 from {hf}position p
    where p.kind = 'rebuild' and p.name = new.name and p.fence = new.fence and p.cursor = new.before);
  update {hf}position
  set cursor = new.reached, passed = passed + 1, lease_until = {now} + new.lease, updated_at = {now}
  where kind = 'rebuild' and name = new.name;
end;
