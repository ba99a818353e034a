-- name: list_groups
-- A page of groups, newest first.
select g.id, g.label, g.key, g.created_at, g.cancelled_at
from {hf}job_group g where true {where} order by g.id desc limit {limit}

-- fragment: where_job_group
and g.id = :id::uuid
-- fragment: where_job_groups_before
and g.id < :before::uuid

-- name: stage_counts
-- The jobs of each stage of these groups by state. A job without a delivery was delivered and pruned.
select m.group_id, m.stage, min(m.consumer), count(distinct m.consumer), count(*),
       count(*) filter (where d.status = 'delivered' or d.id is null),
       count(*) filter (where d.status = 'failed' and d.discarded_at is null),
       count(*) filter (where d.status = 'failed' and d.discarded_at is not null),
       count(*) filter (where d.status = 'in_flight'),
       count(*) filter (where d.status = 'pending')
from {hf}job_group_member m left join {hf}delivery d on d.id = m.delivery_id
where m.group_id = any (:ids::uuid[])
group by m.group_id, m.stage order by m.group_id, m.stage

-- name: list_members
-- The jobs of a stage from a position on, with their state and result.
select m.position, m.consumer as job, m.message_id, m.delivery_id, coalesce(d.status, 'delivered') as status,
       d.discarded_at is not null as discarded, d.error_type, d.last_error as error, r.result::text as result
from {hf}job_group_member m
left join {hf}delivery d on d.id = m.delivery_id
left join {hf}result r on r.delivery_id = m.delivery_id
                      and (d.id is null or (d.status = 'delivered' and d.fence = r.fence))
where m.group_id = :id::uuid and m.stage = :stage::integer and m.position >= :start::integer
order by m.position limit {limit}

-- name: failed_members
-- Jobs of a group that are dead letters, by stage and position.
select m.stage, m.position, m.consumer as job, m.delivery_id, d.error_type, d.last_error as error
from {hf}job_group_member m join {hf}delivery d on d.id = m.delivery_id
where m.group_id = :id::uuid and d.status = 'failed' and d.discarded_at is null
order by m.stage, m.position limit {limit}

-- name: running_members
-- Running jobs of a group that reported their progress, by stage and position.
select m.stage, m.position, m.consumer as job, m.delivery_id, p.fraction, p.note, p.reported_at
from {hf}job_group_member m
join {hf}progress p on p.delivery_id = m.delivery_id
join {hf}delivery d on d.id = p.delivery_id and d.fence = p.fence and d.status = 'in_flight'
where m.group_id = :id::uuid
order by m.stage, m.position limit {limit}

-- name: unfinished_members
-- The handlers and queues of the jobs of a group that have not ended, and whether the job of a message is one of them.
select m.consumer, d.queue, max(case when m.message_id = :message_id::uuid then 1 else 0 end) as is_own
from {hf}job_group_member m join {hf}delivery d on d.id = m.delivery_id
where m.group_id = :id::uuid and d.status in ('pending', 'in_flight')
group by m.consumer, d.queue order by is_own desc, m.consumer, d.queue

-- name: last_member
-- The job of the last stage of a group.
select m.stage, m.message_id, m.consumer from {hf}job_group_member m
where m.group_id = :id::uuid order by m.stage desc, m.position limit 1
