-- fragment: circuit
b.fence, b.failures, b.open_until, b.probe_until, b.changed_at, b.why,
       b.window_at, b.calls, b.failed, b.past_calls, b.past_failed

-- name: breaker
-- The current time and a circuit; the circuit is null if it is not stored.
select clock_timestamp(), b.name, {circuit}
from (select 1) as one left join {hf}breaker b on b.name = :name::text

-- name: breakers
-- All circuits and the current time.
select b.name, clock_timestamp(), {circuit} from {hf}breaker b order by b.name

-- name: make_breaker
-- Creates a closed circuit unless it exists.
insert into {hf}breaker (name) values (:name::text) on conflict (name) do nothing

-- name: lock_breaker
-- Locks a circuit; concurrent changes wait.
select 1 from {hf}breaker where name = :name::text for update

-- name: save_breaker
-- Stores a changed circuit under its lock.
update {hf}breaker
set fence = :fence::bigint, failures = :failures::integer, open_until = :open_until::timestamptz,
    probe_until = :probe_until::timestamptz, changed_at = :changed_at::timestamptz, why = :why::text,
    window_at = :window_at::timestamptz, calls = :calls::bigint, failed = :failed::bigint,
    past_calls = :past_calls::bigint, past_failed = :past_failed::bigint
where name = :name::text
returning name
