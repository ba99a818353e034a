-- name: definitions
-- The stored versions of these workflows, each with whether it has runs.
select f.workflow, f.version, f.hash, f.graph::text,
       exists (select 1 from {hf}workflow_run r where r.name = f.workflow and r.version = f.version)
from {hf}workflow_definition f where f.workflow = any (:names::text[])
order by f.workflow, f.version

-- name: save_definition
-- Stores the graph of a version.
insert into {hf}workflow_definition (workflow, version, hash, graph)
values (:workflow::text, :version::integer, :hash::text, :graph::text::jsonb)
on conflict (workflow, version) do update set hash = excluded.hash, graph = excluded.graph

-- name: definition
-- The graph of one version.
select f.graph::text from {hf}workflow_definition f
where f.workflow = :workflow::text and f.version = :version::integer
