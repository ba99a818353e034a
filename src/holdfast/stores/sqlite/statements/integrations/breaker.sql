-- fragment: circuit
b.fence, b.failures, b.open_until, b.probe_until, b.changed_at, b.why,
       b.window_at, b.calls, b.failed, b.past_calls, b.past_failed

-- name: breaker
-- The current time and a circuit; the circuit is null if it is not stored.
select {now}, b.name, {circuit}
from (select 1) as one left join {hf}breaker b on b.name = :name

-- name: breakers
-- All circuits and the current time.
select b.name, {now}, {circuit} from {hf}breaker b order by b.name

-- name: make_breaker
-- Creates a closed circuit unless it exists.
insert into {hf}breaker (name) values (:name) on conflict (name) do nothing

-- name: lock_breaker
-- Locks a circuit; in SQLite the write transaction already has the only lock.
select 1 from {hf}breaker where name = :name

-- name: save_breaker
-- Stores a changed circuit under its lock.
update {hf}breaker
set fence = :fence, failures = :failures, open_until = :open_until, probe_until = :probe_until,
    changed_at = :changed_at, why = :why, window_at = :window_at, calls = :calls, failed = :failed,
    past_calls = :past_calls, past_failed = :past_failed
where name = :name
returning name
