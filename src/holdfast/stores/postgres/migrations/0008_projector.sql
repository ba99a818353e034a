-- Projectors: consumers whose result can be rebuilt from the event store. Until `held_until` no worker claims
-- their deliveries; this hold of a rebuild is separate from an operator's pause. Every claim reads this table, so
-- the cursor of a rebuild, which changes with each event, is in the table of positions.
create table {hf}projector (
  name          text primary key references {hf}consumer (name),
  registered_at timestamptz not null default now(),
  held_until    timestamptz,
  state         text check (state in ('running', 'stopped', 'done')),
  online        boolean,
  asked_by      text,
  reason        text,
  total         bigint,
  applied       bigint,
  error         text,
  started_at    timestamptz,
  ended_at      timestamptz
);

-- The consumer of a run, so that the last run of a consumer is found by an index.
alter table {hf}run add column consumer text;
create index run_consumer on {hf}run (consumer, completed_at) where consumer is not null;

-- Moves a rebuild's cursor in the transaction that applied the event, or raises: from one place to the next, once.
create function {hf}rebuild_checkpoint(
  projector_name text, owner_fence bigint, before text, reached text, lease interval, idle_timeout_ms bigint
) returns void
language plpgsql as $function$
begin
  -- A peer that dies silently must not hold the row forever.
  perform set_config('idle_in_transaction_session_timeout', idle_timeout_ms::text, true);
  update {hf}position
  set cursor = reached, passed = passed + 1, lease_until = clock_timestamp() + lease, updated_at = clock_timestamp()
  where kind = 'rebuild' and name = projector_name and fence = owner_fence and cursor = before;
  if not found then
    raise exception 'holdfast: lease lost for the rebuild of % at fence %', projector_name, owner_fence
      using errcode = 'HF001';
  end if;
end
$function$;
