-- Messages are immutable and stay as the event store; deliveries are the only mutable rows, narrow on
-- purpose: an UPDATE rewrites its row, so the payload lives apart.

create table {hf}message (
  id          uuid primary key,
  position    bigint generated always as identity,
  type        text not null,
  source      text not null,
  key         text,
  payload     jsonb not null,
  headers     jsonb not null,
  generation  bigint not null,
  occurred_at timestamptz not null default now(),
  tx          xid8 not null default pg_current_xact_id(),
  sub_epoch   bigint not null
) with (autovacuum_vacuum_insert_scale_factor = 0.05);

create unique index message_key on {hf}message (source, key) where key is not null;
-- Commit order: everything below pg_snapshot_xmin() is final, independent of its position.
create index message_log on {hf}message (tx, position);

create table {hf}consumer (
  name             text primary key,
  queue            text not null,
  priority         smallint not null,
  max_attempts     integer not null,
  retry            jsonb not null,
  generation       bigint not null,
  registered_at    timestamptz not null default now(),
  pruned_to        uuid,
  paused_at        timestamptz,
  blocked_until    timestamptz,
  blocked_resource text
);

create table {hf}queue (
  name      text primary key,
  paused_at timestamptz
);

create table {hf}subscription (
  pattern       text not null,
  consumer      text not null references {hf}consumer (name),
  epoch         bigint not null,
  since_epoch   bigint not null,
  from_start    boolean not null,
  activated     pg_snapshot not null default pg_current_snapshot(),
  resumed       pg_snapshot not null default pg_current_snapshot(),
  mark_tx       xid8 not null,
  mark_position bigint not null default 0,
  retired_at    timestamptz,
  primary key (pattern, consumer)
);

-- The id is derived from the message and the consumer, so the primary key alone keeps one delivery per
-- pair, and the deliveries of one message are neighbours. No foreign key: message and delivery are
-- written by one statement, and checking it again costs every insert.
create table {hf}delivery (
  id              uuid primary key,
  message_id      uuid not null,
  consumer        text not null,
  queue           text not null,
  priority        smallint not null,
  generation      bigint not null,
  status          text not null default 'pending' check (status in ('pending', 'in_flight', 'delivered', 'failed')),
  run_at          timestamptz not null default now(),
  attempts        integer not null default 0,
  max_attempts    integer,
  fence           bigint not null default 0,
  suspect         boolean not null default false,
  holds           integer not null default 0,
  expiries        integer not null default 0,
  created_at      timestamptz not null default now(),
  claimed_at      timestamptz,
  completed_at    timestamptz,
  lease_until     timestamptz,
  locked_by       text,
  retry           jsonb,
  unique_key      text,
  last_error      text,
  error_type      text,
  fingerprint     text,
  first_failed_at timestamptz,
  failure_history jsonb,
  discarded_at    timestamptz,
  constraint in_flight_is_locked check ((status = 'in_flight') = (locked_by is not null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);

create index delivery_claim on {hf}delivery (queue, consumer, generation, priority, run_at, id)
  where status = 'pending' and not suspect;
create index delivery_suspect on {hf}delivery (queue, consumer, generation, priority, run_at, id)
  where status = 'pending' and suspect;
create index delivery_lease on {hf}delivery (locked_by) where status = 'in_flight';
-- The newest failures are the end of a separate index; counting them never reads the table.
create index delivery_failed on {hf}delivery (id, discarded_at) where status = 'failed';
create index delivery_failed_count on {hf}delivery (consumer, queue, discarded_at, completed_at) where status = 'failed';
create index delivery_group on {hf}delivery (fingerprint, id) where status = 'failed' and discarded_at is null;
create unique index delivery_unique on {hf}delivery (consumer, unique_key)
  where unique_key is not null and status in ('pending', 'in_flight');

create table {hf}run (
  delivery_id  uuid not null,
  fence        bigint not null,
  attempt      integer not null,
  outcome      text not null,
  error_type   text,
  error        text,
  trace        text,
  worker       text not null,
  started_at   timestamptz,
  completed_at timestamptz not null default now(),
  primary key (delivery_id, fence)
);

create table {hf}handled (
  consumer    text not null,
  source      text not null,
  key         text not null,
  delivery_id uuid not null,
  handled_at  timestamptz not null default now(),
  primary key (source, key, consumer)
);

create table {hf}worker (
  id          text primary key,
  generation  bigint not null,
  queues      text[] not null,
  consumers   text[] not null,
  started_at  timestamptz not null default now(),
  alive_until timestamptz not null
);

create table {hf}audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null default now(),
  actor  text not null,
  action text not null,
  kind   text not null,
  target text not null,
  reason text,
  detail jsonb
);
create index audit_target on {hf}audit (kind, target, id);

-- What a consumer's rows would get if they were replayed now: the highest generation alive for it.
create function {hf}live_generation(consumer_name text) returns bigint
language sql stable as $function$
  select max(w.generation) from {hf}worker w
  where w.alive_until > now() and consumer_name = any (w.consumers)
$function$;

-- Replays the chosen failed deliveries in place (and delivered ones when rerun): the failed cycle moves into
-- failure_history (newest 20 stay on the row, each one is in the audit), the fence rises, the row is pending.
create function {hf}replay(
  ids uuid[], new_generation bigint, replayed_by text, why text, rerun boolean
) returns table (delivery_id uuid, delivery_consumer text, to_generation bigint, new_fence bigint)
language sql as $function$
  with chosen as materialized (
    select d.id, d.consumer, d.unique_key,
      jsonb_build_object(
        'attempts', d.attempts, 'last_error', d.last_error, 'error_type', d.error_type,
        'fingerprint', d.fingerprint, 'first_failed_at', d.first_failed_at, 'failed_at', d.completed_at,
        'generation', d.generation, 'replayed_at', now(), 'replayed_by', replayed_by, 'reason', why) as cycle
    from {hf}delivery d
    where d.id = any (ids)
      and ((d.status = 'failed' and d.discarded_at is null) or (rerun and d.status = 'delivered'))
      and not exists (
        select 1 from {hf}delivery o
        where o.consumer = d.consumer and o.unique_key = d.unique_key and o.status in ('pending', 'in_flight'))
    order by d.id for update of d),
  ranked as (  -- of several with one unique key the first alone can come back
    select c.id, c.cycle, c.unique_key is null or row_number() over (partition by c.consumer, c.unique_key order by c.id) = 1
             as possible
    from chosen c),
  replayed as (
    update {hf}delivery d
    set status = 'pending', run_at = now(), attempts = 0, fence = d.fence + 1,
        generation = coalesce(new_generation, {hf}live_generation(d.consumer), d.generation),
        last_error = null, error_type = null, fingerprint = null, first_failed_at = null,
        completed_at = null, claimed_at = null, suspect = false, holds = 0, expiries = 0,
        failure_history = (
          select jsonb_agg(newest.entry order by newest.n)
          from (select h.entry, h.n
                from jsonb_array_elements(coalesce(d.failure_history, '[]'::jsonb) || ranked.cycle)
                       with ordinality h (entry, n)
                order by h.n desc limit 20) newest)
    from ranked
    where d.id = ranked.id and ranked.possible
    returning d.id, d.consumer, d.generation, d.fence, ranked.cycle),
  audited as (
    insert into {hf}audit (actor, action, kind, target, reason, detail)
    select replayed_by, 'replay', 'delivery', r.id::text, why, r.cycle from replayed r)
  select r.id, r.consumer, r.generation, r.fence from replayed r order by r.id
$function$;

-- For an operator with nothing but psql: replays every dead letter of one event, and shows what it replayed.
create function {hf}outbox_replay(
  event_id uuid, new_generation bigint, replayed_by text, reason text default null
) returns table (delivery_id uuid, delivery_consumer text, to_generation bigint, new_fence bigint)
language sql as $function$
  select r.* from {hf}replay(
    array(select d.id from {hf}delivery d
          where d.message_id = event_id
            and d.id between (left(event_id::text, 18) || '-8000-000000000000')::uuid
                         and (left(event_id::text, 18) || '-bfff-ffffffffffff')::uuid),
    new_generation, replayed_by, reason, false) r
$function$;

-- Marks the delivery delivered inside the caller's own transaction, or raises: swallowing the error cannot
-- commit, because PostgreSQL has aborted the transaction.
create function {hf}complete(completed_delivery uuid, owner_fence bigint, owner text, idle_timeout_ms bigint)
returns void
language plpgsql as $function$
begin
  -- A peer that dies silently must not hold the row forever.
  perform set_config('idle_in_transaction_session_timeout', idle_timeout_ms::text, true);
  update {hf}delivery
  set status = 'delivered', completed_at = now(), suspect = false, expiries = 0, holds = 0,
      lease_until = null, locked_by = null
  where id = completed_delivery and fence = owner_fence and locked_by = owner;
  if not found then
    raise exception 'holdfast: lease lost for delivery % at fence %', completed_delivery, owner_fence
      using errcode = 'HF001';
  end if;
end
$function$;

-- Records (consumer, source, key) as handled in the caller's own transaction, or raises when it already was.
create function {hf}record_handled(handled_consumer text, handled_source text, handled_key text, by_delivery uuid)
returns void
language plpgsql as $function$
begin
  insert into {hf}handled (consumer, source, key, delivery_id)
  values (handled_consumer, handled_source, handled_key, by_delivery)
  on conflict do nothing;
  if not found then
    raise exception 'holdfast: % already handled key % of source %', handled_consumer, handled_key, handled_source
      using errcode = 'HF002';
  end if;
end
$function$;

-- Readable by an operator with only psql.
create view {hf}delivery_view as
  select d.id, m.type, m.source, m.key, d.consumer, d.queue, d.priority, d.status,
         d.discarded_at is not null as discarded, d.attempts, coalesce(d.max_attempts, c.max_attempts) as max_attempts, d.run_at, d.generation,
         d.locked_by as worker, d.lease_until, d.last_error, d.error_type, d.fingerprint, d.first_failed_at,
         d.failure_history, d.created_at, d.claimed_at, d.completed_at, d.message_id, m.payload, m.headers
  from {hf}delivery d join {hf}message m on m.id = d.message_id
  left join {hf}consumer c on c.name = d.consumer;

create view {hf}dead_letter as
  select * from {hf}delivery_view where status = 'failed' and not discarded;
