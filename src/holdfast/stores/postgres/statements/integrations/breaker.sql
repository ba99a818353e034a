-- fragment: circuit
b.fence, b.failures, b.open_until, b.probe_until, b.changed_at, b.why,
       b.window_at, b.calls, b.failed, b.past_calls, b.past_failed

-- name: breaker
-- A circuit and the time now, also when nothing is stored of it.
select clock_timestamp(), b.name, {circuit}
from (select 1) as one left join {hf}breaker b on b.name = :name::text

-- name: breakers
-- Every circuit and the time now.
select b.name, clock_timestamp(), {circuit} from {hf}breaker b order by b.name

-- name: make_breaker
-- A row for a circuit that has none, closed.
insert into {hf}breaker (name) values (:name::text) on conflict (name) do nothing

-- name: lock_breaker
-- Whoever else wants to change it waits.
select 1 from {hf}breaker where name = :name::text for update

-- name: save_breaker
-- What a circuit became; its lock is held.
update {hf}breaker
set fence = :fence::bigint, failures = :failures::integer, open_until = :open_until::timestamptz,
    probe_until = :probe_until::timestamptz, changed_at = :changed_at::timestamptz, why = :why::text,
    window_at = :window_at::timestamptz, calls = :calls::bigint, failed = :failed::bigint,
    past_calls = :past_calls::bigint, past_failed = :past_failed::bigint
where name = :name::text
returning name
