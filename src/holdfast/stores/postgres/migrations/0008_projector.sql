-- Projectors: consumers whose result can be built anew from the event store. While `held_until` is ahead, nobody claims
-- their deliveries; it is a rebuild's own hold and leaves an operator's pause alone. Every claim reads this table, so
-- what changes with each event of a rebuild, its cursor, is in the table of positions.
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

-- Whose run it was, so that the last one of a consumer is found without a search.
alter table {hf}run add column consumer text;
create index run_consumer on {hf}run (consumer, completed_at) where consumer is not null;

-- Moves a rebuild's cursor in the transaction that applied the event, or raises: from one place to the next, once.
create function {hf}rebuild_checkpoint(
  projector_name text, owner_fence bigint, before text, reached text, lease interval, idle_timeout_ms bigint
) returns void
language plpgsql as $function$
begin
  -- A peer that dies without a word must not hold the row for ever.
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
