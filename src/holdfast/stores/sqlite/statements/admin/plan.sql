-- fragment: plan
p.id, p.action, p.state, p.preview, p.rerun, p.generation, p.items, p.total, p.position, p.done, p.skipped,
p.made_at, p.saved_at, p.saved_by, p.save_reason, p.started_at, p.started_by, p.start_reason, p.ended_at, p.runner,
p.results, p.settled_at

-- name: save_plan
-- Stores a plan unless it is stored already.
insert into {hf}plan (id, action, preview, rerun, items, total, skipped, made_at, saved_by, save_reason)
values (:id, :action, :preview, :rerun, :items, :total, :skipped, :made_at, :actor, :reason)
on conflict (id) do nothing
returning id

-- name: save_plan_items
-- Stores some of the deliveries a plan holds, in the order it takes them.
-- all: items
insert into {hf}plan_item
  (plan_id, n, delivery_id, consumer, type, status, generation, fence, to_generation, outcome)
select :plan, json_extract(i.value, '$[0]'), json_extract(i.value, '$[1]'), json_extract(i.value, '$[2]'),
       json_extract(i.value, '$[3]'), json_extract(i.value, '$[4]'), json_extract(i.value, '$[5]'),
       json_extract(i.value, '$[6]'), json_extract(i.value, '$[7]'), json_extract(i.value, '$[8]')
from json_each(:rows) i

-- name: find_plan
-- One plan as it stands.
select {plan} from {hf}plan p where p.id = :id

-- name: list_plans
-- A page of plans, newest first.
select {plan} from {hf}plan p where true {where} order by p.id desc limit :limit

-- fragment: where_plan_before
and p.id < :before
-- fragment: where_plan_state
and p.state = :state

-- name: running_plans
-- The plans that somebody may go on with now: running, and held by this runner or by none that lives.
select p.id from {hf}plan p
where p.state = 'running' and (p.runner = :runner or p.lease_until is null or p.lease_until < {now})
order by p.id

-- name: list_plan_items
-- A page of a plan's deliveries in its order, with what came of each.
select i.n, i.delivery_id, i.consumer, i.type, i.outcome, i.replayed_by, i.to_generation, i.result
from {hf}plan_item i
where i.plan_id = :plan and i.n > :after {where}
order by i.n limit :limit

-- fragment: where_item_skipped
and i.outcome <> 'done'
-- fragment: where_item_dead
and i.result = 'dead'

-- name: start_plan
-- Lets a plan run, once.
update {hf}plan
set state = 'running', started_at = {now}, started_by = :actor, start_reason = :reason, generation = :generation
where id = :id and state = 'ready'
returning id

-- name: move_plan
-- Pauses, resumes or abandons a plan that is in one of these states; who ran it has no claim to it any more.
update {hf}plan
set state = :state, ended_at = case when :state = 'abandoned' then {now} end, runner = null, lease_until = null
where id = :id and state in (select value from json_each(:from))
returning id

-- name: take_plan
-- Takes or keeps the right to go on with a running plan, unless another holds it; locks it until the commit.
update {hf}plan as p set runner = :runner, lease_until = {now} + :lease
where p.id = :id and p.state = 'running' and (p.runner = :runner or p.lease_until is null or p.lease_until < {now})
returning id, action, state, preview, rerun, generation, items, total, position, done, skipped,
  made_at, saved_at, saved_by, save_reason, started_at, started_by, start_reason, ended_at, runner,
  results, settled_at

-- name: next_plan_items
-- The next deliveries of a plan.
select i.n, i.delivery_id, i.status, i.fence, i.to_generation from {hf}plan_item i
where i.plan_id = :plan and i.n > :after and i.n <= :last
order by i.n limit :limit

-- name: record_plan_items
-- Notes what came of deliveries of a plan.
-- each: outcomes
update {hf}plan_item set outcome = :outcome, replayed_by = :replayed_by where plan_id = :plan and n = :n

-- name: advance_plan
-- Moves a plan on, in the transaction that acted; the last step ends it.
update {hf}plan
set position = :position, done = :done, skipped = :skipped,
    state = case when :position = items then 'done' else state end,
    ended_at = case when :position = items then {now} end,
    runner = case when :position < items then runner end,
    lease_until = case when :position < items then lease_until end
where id = :id
returning id, action, state, preview, rerun, generation, items, total, position, done, skipped,
  made_at, saved_at, saved_by, save_reason, started_at, started_by, start_reason, ended_at, runner,
  results, settled_at

-- name: unsettled_plans
-- The plans whose replayed deliveries have not all ended.
select p.id from {hf}plan p where p.action = 'replay' and p.done > 0 and p.settled_at is null order by p.id

-- name: hold_plan
-- How far a plan has been followed; the write transaction keeps it so.
select p.state, p.done, p.followed, p.results from {hf}plan p where p.id = :id

-- name: unsettled_plan_items
-- The next deliveries of a plan that were replayed and not yet found ended, as they stand.
select i.n, d.status, d.discarded_at is not null
from {hf}plan_item i left join {hf}delivery d on d.id = i.delivery_id
where i.plan_id = :plan and i.outcome = 'done' and i.result is null and i.n > :after
order by i.n limit :limit

-- name: record_plan_results
-- Notes how deliveries of a plan ended.
-- each: results
update {hf}plan_item set result = :result where plan_id = :plan and n = :n and result is null

-- name: follow_plan
-- Notes how far a plan has been followed and what was found; with the last result it is settled.
update {hf}plan
set followed = :followed, results = :results,
    settled_at = case when :settled then {now} end
where id = :id
returning id

-- name: forget_plan
-- Removes the oldest plan that ended, or was saved and never started, that long ago; the audit of it stays.
-- once
delete from {hf}plan
where id = (
  select p.id from {hf}plan p
  where p.state in ('ready', 'done', 'abandoned') and coalesce(p.ended_at, p.saved_at) < {now} - :older_than
  order by p.id limit 1)
returning id;
-- each: returned
delete from {hf}plan_item where plan_id = :id returning plan_id

-- name: handled_already
-- Those of the given deliveries whose consumer has handled their message's key before.
select d.id from {hf}delivery d
join {hf}message m on m.id = d.message_id
join {hf}handled h on h.source = m.source and h.key = m.key and h.consumer = d.consumer
where d.id in (select value from json_each(:ids))
