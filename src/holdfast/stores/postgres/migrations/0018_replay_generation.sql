-- A replay assigns the highest live generation that serves the queue of the delivery. It ignored the queues, so that a
-- delivery could wait for a worker that never claims it. Without a queue, any queue counts.
drop function {hf}live_generation(text);
create function {hf}live_generation(consumer_name text, queue_name text default null) returns bigint
language sql stable as $function$
  select max(w.generation) from {hf}worker w
  where w.alive_until > now() and consumer_name = any (w.consumers)
    and (w.queues = '{}' or queue_name is null or queue_name = any (w.queues))
$function$;

create or replace function {hf}replay(
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
        generation = coalesce(new_generation, {hf}live_generation(d.consumer, d.queue), d.generation),
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

-- Each replay is a plan, so the plans without complete results are found by an index.
create index plan_unsettled on {hf}plan (id) where action = 'replay' and settled_at is null;
