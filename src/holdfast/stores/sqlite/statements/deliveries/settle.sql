-- name: settle_delivered
-- Marks claims delivered; a claim that is not returned was lost.
-- all: settlements
update {hf}delivery as d
set status = 'delivered', completed_at = {now}, suspect = 0, expiries = 0, lease_until = null, locked_by = null
from json_each(:rows) s
where d.id = json_extract(s.value, '$[0]') and d.fence = json_extract(s.value, '$[1]') and d.locked_by = :worker
returning id

-- name: settle
-- Writes any outcome with its run record; a claim that is not returned was lost. The run of an expired lease belonged to
-- another worker, so the generation of the worker that settles it is not recorded.
-- each: settlements
update {hf}delivery
set status = :status, attempts = attempts - :returned, holds = holds + :held,
    expiries = case when :expired then expiries + 1 else 0 end,
    suspect = :suspect or (suspect and :status <> 'delivered'),
    run_at = case when :status = 'pending' then coalesce(:until, {now} + :delay, run_at) else run_at end,
    completed_at = case when :status in ('delivered', 'failed') then {now} end,
    discarded_at = case when :discarded then {now} end,
    last_error = coalesce(:error, last_error), error_type = coalesce(:error_type, error_type),
    fingerprint = coalesce(:fingerprint, fingerprint),
    failed_type = case when :status = 'failed' then (select m.type from {hf}message m where m.id = message_id)
                       else failed_type end,
    first_failed_at = case when :failure then coalesce(first_failed_at, {now}) else first_failed_at end,
    lease_until = null, locked_by = null
where id = :delivery_id and fence = :fence and locked_by = :worker
returning id, fence, attempts + :returned as attempt, :outcome as outcome, :error_type as error_type,
          :error as error, :trace as trace, :elapsed as elapsed, :keep_run as keep_run, :detail as detail, consumer,
          :expired as expired, {now} as settled_at;
-- each: returned
insert into {hf}run (delivery_id, fence, attempt, outcome, error_type, error, trace, worker, started_at, completed_at,
                     detail, consumer, generation)
select :id, :fence, :attempt, :outcome, :error_type, :error, :trace, :worker, :settled_at - :elapsed, :settled_at,
       :detail, :consumer, case when not :expired then (select w.generation from {hf}worker w where w.id = :worker) end
where :keep_run

-- fragment: claimed_rows
locked_by = :worker
-- fragment: delivered_rows
status = 'delivered'

-- name: remove_deliveries
-- Removes deliveries that are done, with their runs and progress; a claim that is not returned was lost. The message goes
-- if it was addressed to this consumer alone and has no key: an event stays for its other readers, and a key for its
-- repetitions. The result of an earlier cycle goes too.
-- each: claims
delete from {hf}delivery where id = :delivery_id and fence = :fence and {owned}
returning id, message_id, fence;
-- each: returned
delete from {hf}run where delivery_id = :id;
delete from {hf}progress where delivery_id = :id;
delete from {hf}result where delivery_id = :id and fence <> :fence;
delete from {hf}message
where id = :message_id and key is null and sub_epoch = 9223372036854775807
  and not exists (
    select 1 from {hf}delivery x
    where x.message_id = :message_id and x.id between substr(:message_id, 1, 18) || '-8000-000000000000'
                                                  and substr(:message_id, 1, 18) || '-bfff-ffffffffffff')

-- name: may_remove_messages
-- Whether this process may remove messages; SQLite has no roles.
select 1

-- name: claim_states
-- The current owners of these deliveries. After a lost reply, an unchanged fence without an owner means "settled".
select d.id, d.fence, d.status, d.locked_by from {hf}delivery d where d.id in (select value from json_each(:ids))

-- name: unlocked
-- The given deliveries; a reader cannot detect locks in SQLite, so no delivery is excluded.
select d.id from {hf}delivery d where d.id in (select value from json_each(:ids))

-- name: complete
-- Marks a claim delivered in the caller's transaction, or raises and rolls it back.
insert into {hf}complete (delivery_id, fence, worker) values (:delivery_id, :fence, :worker)

-- name: record_handled
-- Records the key of a broker record as handled in the caller's transaction, or raises and rolls it back.
insert into {hf}record_handled (consumer, source, key, delivery_id) values (:consumer, :source, :key, :delivery_id)
