-- name: unserved
-- Events of a batch that match an active subscription of a consumer and are newer than its pruned deliveries.
select distinct m.id, m.generation, c.queue, c.priority, c.generation
from {hf}message m
join {hf}consumer c on c.name = :name and (c.pruned_to is null or m.id > c.pruned_to)
join {hf}subscription s on s.consumer = c.name and s.retired_at is null
  and (s.pattern = m.type or s.pattern = '*'
       or (substr(s.pattern, -2) = '.*'
           and substr(m.type, 1, length(s.pattern) - 1) = substr(s.pattern, 1, length(s.pattern) - 1)))
left join {hf}endpoint e on e.consumer = c.name
where m.id >= :cursor and m.id < :ceiling and m.sub_epoch < 9223372036854775807
  and (e.tenant is null or e.tenant = json_extract(m.headers, '$.tenant'))

-- name: pruned_to
-- The newest message whose delivery to a consumer was pruned.
select c.pruned_to from {hf}consumer c where c.name = :name
