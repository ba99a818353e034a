-- fragment: plan
p.id, p.action, p.state, p.preview::text, p.rerun, p.generation, p.items, p.total, p.position, p.done, p.skipped::text,
p.made_at, p.saved_at, p.saved_by, p.save_reason, p.started_at, p.started_by, p.start_reason, p.ended_at, p.runner,
p.results, p.settled_at

-- name: save_plan
-- Stores a plan unless it is stored already.
insert into {hf}plan (id, action, preview, rerun, items, total, skipped, made_at, saved_by, save_reason)
values (:id::uuid, :action::text, :preview::text::jsonb, :rerun::boolean, :items::integer, :total::integer,
        :skipped::text::jsonb, :made_at::timestamptz, :actor::text, :reason::text)
on conflict (id) do nothing
returning id

-- name: save_plan_items
-- Stores some of the deliveries a plan holds, in the order it takes them.
insert into {hf}plan_item
  (plan_id, n, delivery_id, consumer, type, status, generation, fence, to_generation, outcome)
select :plan::uuid, i.* from unnest(
  :n::integer[], :delivery_id::uuid[], :consumer::text[], :type::text[], :status::text[], :generation::bigint[],
  :fence::bigint[], :to_generation::bigint[], :outcome::text[]) i

-- name: find_plan
-- One plan as it stands.
select {plan} from {hf}plan p where p.id = :id::uuid

-- name: list_plans
-- A page of plans, newest first.
select {plan} from {hf}plan p where true {where} order by p.id desc limit {limit}

-- fragment: where_plan_before
and p.id < :before::uuid
-- fragment: where_plan_state
and p.state = :state::text

-- name: running_plans
-- The plans that somebody may go on with now: running, and held by this runner or by none that lives.
select p.id from {hf}plan p
where p.state = 'running' and (p.runner = :runner::text or p.lease_until is null or p.lease_until < now())
order by p.id

-- name: list_plan_items
-- A page of a plan's deliveries in its order, with what came of each.
select i.n, i.delivery_id, i.consumer, i.type, i.outcome, i.replayed_by, i.to_generation, i.result
from {hf}plan_item i
where i.plan_id = :plan::uuid and i.n > :after::integer {where}
order by i.n limit {limit}

-- fragment: where_item_skipped
and i.outcome <> 'done'
-- fragment: where_item_dead
and i.result = 'dead'

-- name: start_plan
-- Lets a plan run, once.
update {hf}plan
set state = 'running', started_at = now(), started_by = :actor::text, start_reason = :reason::text,
    generation = :generation::bigint
where id = :id::uuid and state = 'ready'
returning id

-- name: move_plan
-- Pauses, resumes or abandons a plan that is in one of these states; who ran it has no claim to it any more.
update {hf}plan
set state = :state::text, ended_at = case when :state::text = 'abandoned' then now() end, runner = null,
    lease_until = null
where id = :id::uuid and state = any (:from::text[])
returning id

-- name: take_plan
-- Takes or keeps the right to go on with a running plan, unless another holds it; locks it until the commit.
update {hf}plan p set runner = :runner::text, lease_until = now() + :lease::interval
where p.id = (
  select f.id from {hf}plan f
  where f.id = :id::uuid and f.state = 'running'
    and (f.runner = :runner::text or f.lease_until is null or f.lease_until < now())
  for update skip locked)
returning {plan}

-- name: next_plan_items
-- The next deliveries of a plan.
select i.n, i.delivery_id, i.status, i.fence, i.to_generation from {hf}plan_item i
where i.plan_id = :plan::uuid and i.n > :after::integer and i.n <= :last::integer
order by i.n limit {limit}

-- name: record_plan_items
-- Notes what came of deliveries of a plan.
update {hf}plan_item i set outcome = o.outcome, replayed_by = o.replayed_by
from unnest(:n::integer[], :outcome::text[], :replayed_by::text[]) o (n, outcome, replayed_by)
where i.plan_id = :plan::uuid and i.n = o.n

-- name: advance_plan
-- Moves a plan on, in the transaction that acted; the last step ends it.
update {hf}plan p
set position = :position::integer, done = :done::integer, skipped = :skipped::text::jsonb,
    state = case when :position::integer = p.items then 'done' else p.state end,
    ended_at = case when :position::integer = p.items then now() end,
    runner = case when :position::integer < p.items then p.runner end,
    lease_until = case when :position::integer < p.items then p.lease_until end
where p.id = :id::uuid
returning {plan}

-- name: unsettled_plans
-- The plans whose replayed deliveries have not all ended.
select p.id from {hf}plan p where p.action = 'replay' and p.done > 0 and p.settled_at is null order by p.id

-- name: hold_plan
-- How far a plan has been followed; locks it, unless somebody acts on it now.
select p.state, p.done, p.followed, p.results from {hf}plan p where p.id = :id::uuid for no key update skip locked

-- name: unsettled_plan_items
-- The next deliveries of a plan that were replayed and not yet found ended, as they stand.
select i.n, d.status, d.discarded_at is not null
from {hf}plan_item i left join {hf}delivery d on d.id = i.delivery_id
where i.plan_id = :plan::uuid and i.outcome = 'done' and i.result is null and i.n > :after::integer
order by i.n limit {limit}

-- name: record_plan_results
-- Notes how deliveries of a plan ended.
update {hf}plan_item i set result = o.result
from unnest(:n::integer[], :result::text[]) o (n, result)
where i.plan_id = :plan::uuid and i.n = o.n and i.result is null

-- name: follow_plan
-- Notes how far a plan has been followed and what was found; with the last result it is settled.
update {hf}plan
set followed = :followed::integer, results = :results::text,
    settled_at = case when :settled::boolean then now() end
where id = :id::uuid
returning id

-- name: forget_plan
-- Removes the oldest plan that ended, or was saved and never started, that long ago; the audit of it stays.
with old as (
  select p.id from {hf}plan p
  where p.state in ('ready', 'done', 'abandoned') and coalesce(p.ended_at, p.saved_at) < now() - :older_than::interval
  order by p.id limit 1 for update skip locked),
items as (delete from {hf}plan_item i using old where i.plan_id = old.id),
gone as (delete from {hf}plan p using old where p.id = old.id)
select old.id from old

-- name: handled_already
-- Those of the given deliveries whose consumer has handled their message's key before.
select d.id from {hf}delivery d
join {hf}message m on m.id = d.message_id
join {hf}handled h on h.source = m.source and h.key = m.key and h.consumer = d.consumer
where d.id = any (:ids::uuid[])
