-- name: encrypted_messages
-- The next messages: the id of each key, and the value if its key is not the current one.
select id, stored_key,
       case when stored_key not in (:current, :skipped) then payload end
from (
  select id, payload, coalesce(json_extract(payload, '$."$encrypted".key'), '') as stored_key
  from {hf}message
  where id > :after_id order by id limit :limit) s
order by id

-- name: reencrypt_message
-- Replaces the value unless it has changed since it was read.
update {hf}message set payload = :new
where id = :id and payload = :old
returning id

-- name: encrypted_results
-- The next results: the id of each key, and the value if its key is not the current one.
select delivery_id, stored_key,
       case when stored_key not in (:current, :skipped) then result end
from (
  select delivery_id, result, coalesce(json_extract(result, '$."$encrypted".key'), '') as stored_key
  from {hf}result
  where delivery_id > :after_delivery_id order by delivery_id limit :limit) s
order by delivery_id

-- name: reencrypt_result
-- Replaces the value unless it has changed since it was read.
update {hf}result set result = :new
where delivery_id = :delivery_id and result = :old
returning delivery_id

-- name: encrypted_steps
-- The next workflow steps: the id of each key, and the value if its key is not the current one.
select run_id, name, occurrence, outcome, result_key,
       case when result_key not in (:current, :skipped) then result end, item_key,
       case when item_key not in (:current, :skipped) then item end
from (
  select run_id, name, occurrence, outcome, result, item,
         case when result is not null then coalesce(json_extract(result, '$."$encrypted".key'), '') end as result_key,
         case when item is not null then coalesce(json_extract(item, '$."$encrypted".key'), '') end as item_key
  from {hf}workflow_step
  where (run_id, name, occurrence) > (:after_run_id, :after_name, :after_occurrence)
  order by run_id, name, occurrence limit :limit) s
order by run_id, name, occurrence

-- name: reencrypt_step_result
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_step set result = :new
where run_id = :run_id and name = :name and occurrence = :occurrence and result = :old
returning run_id

-- name: reencrypt_step_item
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_step set item = :new
where run_id = :run_id and name = :name and occurrence = :occurrence and item = :old
returning run_id

-- name: encrypted_signals
-- The next signals: the id of each key, and the value if its key is not the current one.
select id, run_id, stored_key,
       case when stored_key not in (:current, :skipped) then payload end
from (
  select id, run_id, payload,
         case when payload is not null then coalesce(json_extract(payload, '$."$encrypted".key'), '') end as stored_key
  from {hf}workflow_signal
  where id > :after_id order by id limit :limit) s
order by id

-- name: reencrypt_signal
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_signal set payload = :new
where id = :id and payload = :old
returning id

-- name: encrypted_schedules
-- The next run-time schedules: the id of each key, and the value if its key is not the current one.
select name, stored_key,
       case when stored_key not in (:current, :skipped) then args end
from (
  select name, args,
         case when args is not null then coalesce(json_extract(args, '$."$encrypted".key'), '') end as stored_key
  from {hf}schedule
  where name > :after_name and not declared order by name limit :limit) s
order by name

-- name: reencrypt_schedule
-- Replaces the value unless it has changed since it was read.
update {hf}schedule set args = :new
where name = :name and args = :old
returning name

-- name: encrypted_responses
-- The next HTTP responses: the id of each key, and the value if its key is not the current one.
-- The headers and the body of a response are written at once, with the same key.
select scope, key, stored_key,
       case when stored_key not in (:current, :skipped) then response_headers end, stored_key,
       case when stored_key not in (:current, :skipped) then response_body end
from (
  select scope, key, response_headers, response_body,
         case when response_headers is not null
           then coalesce(json_extract(response_headers, '$."$encrypted".key'), '') end as stored_key
  from {hf}idempotency
  where (scope, key) > (:after_scope, :after_key) order by scope, key limit :limit) s
order by scope, key

-- name: reencrypt_response_headers
-- Replaces the value unless it has changed since it was read.
update {hf}idempotency set response_headers = :new
where scope = :scope and key = :key and response_headers = :old
returning scope

-- name: reencrypt_response_body
-- Replaces the value unless it has changed since it was read.
update {hf}idempotency set response_body = :new
where scope = :scope and key = :key and response_body = :old
returning scope

-- name: encrypted_endpoints
-- The next endpoints with their values; there are few, so all are returned.
select id, null, headers, null, secret, null, previous_secret
from {hf}endpoint
where id > :after_id order by id limit :limit

-- name: reencrypt_endpoint_headers
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set headers = :new
where id = :id and headers = :old
returning id

-- name: reencrypt_secret
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set secret = :new
where id = :id and secret = :old
returning id

-- name: reencrypt_previous_secret
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set previous_secret = :new
where id = :id and previous_secret = :old
returning id
