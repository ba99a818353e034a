-- fragment: plan
p.id, p.action, p.state, p.preview::text, p.rerun, p.generation, p.items, p.total, p.position, p.done, p.skipped::text,
p.made_at, p.saved_at, p.saved_by, p.save_reason, p.started_at, p.started_by, p.start_reason, p.ended_at, p.runner,
p.results, p.settled_at

-- name: select_plan_items
-- Stores the matching deliveries, oldest first, in the order in which a plan takes them: those in flight after the
-- others, those that it skips last.
insert into {hf}plan_item
  (plan_id, n, delivery_id, consumer, type, status, generation, fence, to_generation, outcome)
with candidate as materialized (
  select d.id, d.consumer, d.queue, m.type, d.status, d.generation, d.fence,
         case when d.discarded_at is not null then 'discarded'
              when d.status <> all (:acceptable::text[]) then d.status
              when :replay::boolean and {run_ended} then 'run_ended' end as skipped
  from {hf}delivery d join {hf}message m on m.id = d.message_id
  where true {where}
  order by d.id limit {limit}),
lane as materialized (
  select l.consumer, l.queue, {hf}live_generation(l.consumer, l.queue) as generation
  from (select distinct c.consumer, c.queue from candidate c) l)
select :plan::uuid, row_number() over (order by c.skipped is not null, c.status = 'in_flight', c.id), c.id, c.consumer,
       c.type, c.status, c.generation, c.fence,
       case when :replay::boolean then coalesce(l.generation, c.generation) end, c.skipped
from candidate c join lane l on l.consumer = c.consumer and l.queue = c.queue

-- name: add_missing_plan_items
-- Stores the requested ids that match no delivery, after the others. A delivery may be pruned after it was selected.
insert into {hf}plan_item (plan_id, n, delivery_id, outcome)
select :plan::uuid,
       (select coalesce(max(i.n), 0) from {hf}plan_item i where i.plan_id = :plan::uuid) + row_number() over (), r.id,
       'not_found'
from (select distinct r.id from unnest(:ids::uuid[]) r (id)) r
where not exists (select 1 from {hf}delivery d where d.id = r.id)
  and not exists (select 1 from {hf}plan_item i where i.plan_id = :plan::uuid and i.delivery_id = r.id)

-- name: count_plan_items
-- Counts the deliveries of a plan by each attribute that its preview shows.
select i.consumer, d.queue, i.type, i.generation, i.to_generation, d.fingerprint, i.outcome, count(*)
from {hf}plan_item i left join {hf}delivery d on d.id = i.delivery_id
where i.plan_id = :plan::uuid
group by 1, 2, 3, 4, 5, 6, 7

-- name: count_plan_duplicates
-- Counts the deliveries of a plan that the inbox, or a deduplication window in the store, would skip.
select count(h.key), count(s.key)
from {hf}plan_item i
join {hf}delivery d on d.id = i.delivery_id
join {hf}message m on m.id = d.message_id
left join {hf}handled h on h.source = m.source and h.key = m.key and h.consumer = d.consumer
left join {hf}seen s
  on s.consumer = d.consumer and s.key = coalesce(m.source || ':' || m.key, m.id::text) and s.expires_at > now()
where i.plan_id = :plan::uuid and i.outcome is null

-- name: last_plan_delivery
-- The newest delivery of a plan; ids that match no delivery do not count.
select i.delivery_id from {hf}plan_item i
where i.plan_id = :plan::uuid and i.status is not null
order by i.delivery_id desc limit 1

-- name: save_plan
-- Stores a plan whose items are stored.
insert into {hf}plan as p (id, action, preview, rerun, items, total, skipped, made_at, saved_by, save_reason)
values (:id::uuid, :action::text, :preview::text::jsonb, :rerun::boolean, :items::integer, :total::integer,
        :skipped::text::jsonb, :made_at::timestamptz, :actor::text, :reason::text)
returning {plan}

-- name: find_plan
-- One plan.
select {plan} from {hf}plan p where p.id = :id::uuid

-- name: list_plans
-- A page of plans, newest first.
select {plan} from {hf}plan p where true {where} order by p.id desc limit {limit}

-- fragment: where_plan_before
and p.id < :before::uuid
-- fragment: where_plan_state
and p.state = :state::text

-- name: running_plans
-- The running plans that this runner may execute: no other runner holds a valid lease on them.
select p.id from {hf}plan p
where p.state = 'running' and (p.runner = :runner::text or p.lease_until is null or p.lease_until < now())
order by p.id

-- name: list_plan_items
-- A page of the deliveries of a plan, in its order.
select i.n, i.delivery_id as id, i.consumer, i.type, i.status, i.generation, i.to_generation,
       coalesce(i.outcome = 'done', false) as done, nullif(i.outcome, 'done') as why, i.replayed_by as by, i.result
from {hf}plan_item i
where i.plan_id = :plan::uuid and i.n > :after::integer {where}
order by i.n limit {limit}

-- fragment: where_item_skipped
and i.outcome <> 'done'
-- fragment: where_item_dead
and i.result = 'dead'

-- name: start_plan
-- Starts a plan that is ready.
update {hf}plan p
set state = 'running', started_at = now(), started_by = :actor::text, start_reason = :reason::text,
    generation = :generation::bigint
where p.id = :id::uuid and p.state = 'ready'
returning {plan}

-- name: move_plan
-- Pauses, resumes or abandons a plan that is in one of these states, and ends its runner's lease.
update {hf}plan p
set state = :state::text, ended_at = case when :state::text = 'abandoned' then now() end, runner = null,
    lease_until = null
where p.id = :id::uuid and p.state = any (:from::text[])
returning {plan}

-- name: lock_plan
-- Locks a running plan, unless another runner holds a valid lease on it or acts on it now.
select {plan} from {hf}plan p
where p.id = :id::uuid and p.state = 'running'
  and (p.runner = :runner::text or p.lease_until is null or p.lease_until < now())
for update skip locked

-- name: next_plan_items
-- The next deliveries of a plan.
select i.n, i.delivery_id, i.status, i.fence, i.to_generation from {hf}plan_item i
where i.plan_id = :plan::uuid and i.n > :after::integer and i.n <= :last::integer
order by i.n limit {limit}

-- name: advance_plan
-- Records what a batch did, in the transaction that did it, and extends the runner's lease. The last batch ends the plan.
with recorded as (
  update {hf}plan_item i set outcome = o.outcome, replayed_by = o.replayed_by
  from unnest(:n::integer[], :outcome::text[], :replayed_by::text[]) o (n, outcome, replayed_by)
  where i.plan_id = :id::uuid and i.n = o.n)
update {hf}plan p
set position = :position::integer, done = :done::integer, skipped = :skipped::text::jsonb,
    state = case when :position::integer = p.items then 'done' else p.state end,
    ended_at = case when :position::integer = p.items then now() end,
    runner = case when :position::integer < p.items then :runner::text end,
    lease_until = case when :position::integer < p.items then now() + :lease::interval end
where p.id = :id::uuid
returning {plan}

-- name: unsettled_plans
-- The replays whose results are not complete. A small one is left out while none of its deliveries has ended: there may
-- be many of them.
select p.id from {hf}plan p
where p.action = 'replay' and p.settled_at is null and p.done > 0
  and (p.done > 100
       or exists (
         select 1 from {hf}plan_item i left join {hf}delivery d on d.id = i.delivery_id
         where i.plan_id = p.id and i.outcome = 'done' and i.result is null
           and (d.id is null or d.status in ('delivered', 'failed')))
       or not exists (
         select 1 from {hf}plan_item i where i.plan_id = p.id and i.outcome = 'done' and i.result is null))
order by p.id

-- name: hold_plan
-- How far the results of a plan are counted; locks it, unless a runner acts on it now.
select p.state, p.done, p.followed, p.results from {hf}plan p where p.id = :id::uuid for no key update skip locked

-- name: unsettled_plan_items
-- The next replayed deliveries of a plan without a result, with their current state.
select i.n, d.status, d.discarded_at is not null
from {hf}plan_item i left join {hf}delivery d on d.id = i.delivery_id
where i.plan_id = :plan::uuid and i.outcome = 'done' and i.result is null and i.n > :after::integer
order by i.n limit {limit}

-- name: record_plan_results
-- Records the results of deliveries of a plan.
update {hf}plan_item i set result = o.result
from unnest(:n::integer[], :result::text[]) o (n, result)
where i.plan_id = :plan::uuid and i.n = o.n and i.result is null

-- name: follow_plan
-- Records how far the results of a plan are counted. With the last result the plan is settled.
update {hf}plan
set followed = :followed::integer, results = :results::text,
    settled_at = case when :settled::boolean then now() end
where id = :id::uuid
returning id

-- name: delete_plan
-- Deletes a plan that was never started. Its audit entries stay.
with gone as (delete from {hf}plan p where p.id = :id::uuid and p.state = 'ready' returning p.id),
items as (delete from {hf}plan_item i using gone where i.plan_id = gone.id)
select gone.id from gone

-- name: forget_plan
-- Removes the oldest plan that ended, or was saved and never started, that long ago. Its audit entries stay.
with old as (
  select p.id from {hf}plan p
  where p.state in ('ready', 'done', 'abandoned') and coalesce(p.ended_at, p.saved_at) < now() - :older_than::interval
  order by p.id limit 1 for update skip locked),
items as (delete from {hf}plan_item i using old where i.plan_id = old.id),
gone as (delete from {hf}plan p using old where p.id = old.id)
select old.id from old
