-- fragment: unfinished_before
(select 1
 from {hf}job_group_member m
 cross join lateral (
   select 1 from {hf}delivery o where o.id = m.delivery_id and o.status in ('pending', 'in_flight') offset 0) o
 where m.group_id = w.group_id and m.stage = w.stage - 1
 order by m.position desc limit 1)

-- name: stage_of
-- What a job of a later stage needs to know before it runs.
select w.group_id, w.stage, w.position, w.input, w.on_failure, w.decided_at is not null,
       coalesce(d.failure_history, '[]') <> '[]', extract(epoch from now() - g.created_at)::float8,
       w.decided_at is null and {unfinished_before} is not null
from {hf}job_group_member w
join {hf}job_group g on g.id = w.group_id
join {hf}delivery d on d.id = w.delivery_id
where w.delivery_id = :delivery_id::uuid and w.stage > 0

-- name: decide_stage
-- Stores that a job of a later stage may run, while its claim is held.
update {hf}job_group_member w set decided_at = now()
from {hf}delivery d
where w.group_id = :group_id::uuid and w.stage = :stage::integer and w.position = :position::integer
  and d.id = w.delivery_id and d.fence = :fence::bigint and d.locked_by = :worker::text
returning 1

-- name: wake_stages
-- Makes jobs of these groups due that wait only for a stage that has ended. An unfinished job is searched from the last
-- one: jobs mostly end in their order, so the first lookup finds one until the stage is nearly done.
update {hf}delivery d set run_at = now()
from {hf}job_group_member w
where w.group_id = any (:ids::uuid[]) and w.stage > 0 and w.decided_at is null
  and d.id = w.delivery_id and d.status = 'pending' and d.run_at > now() and {unfinished_before} is null
returning d.id

-- name: wake_stages_after
-- Does the same as `wake_stages` for the groups of these deliveries.
update {hf}delivery d set run_at = now()
from {hf}job_group_member w
where w.group_id in (select g.group_id from {hf}job_group_member g where g.delivery_id = any (:ids::uuid[]))
  and w.stage > 0 and w.decided_at is null
  and d.id = w.delivery_id and d.status = 'pending' and d.run_at > now() and {unfinished_before} is null

-- name: stage_results
-- The results of the jobs of a stage from a position on. A result of an earlier cycle is not returned.
select r.result::text, m.delivery_id
from {hf}job_group_member m
left join {hf}delivery d on d.id = m.delivery_id
left join {hf}result r on r.delivery_id = m.delivery_id
                      and (d.id is null or (d.status = 'delivered' and d.fence = r.fence))
where m.group_id = :group_id::uuid and m.stage = :stage::integer and m.position >= :start::integer
order by m.position limit {limit}
