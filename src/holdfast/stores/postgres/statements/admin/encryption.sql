-- name: encrypted_messages
-- The next messages: the id of each key, and the value if its key is not the current one.
select id, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then payload::text end
from (
  select id, payload, coalesce(payload -> '$encrypted' ->> 'key', '') as stored_key
  from {hf}message
  where id > :after_id::uuid order by id limit {limit}) s
order by id

-- name: reencrypt_message
-- Replaces the value unless it has changed since it was read.
update {hf}message set payload = :new::text::jsonb
where id = :id::uuid and payload = :old::text::jsonb
returning id

-- name: encrypted_results
-- The next results: the id of each key, and the value if its key is not the current one.
select delivery_id, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then result::text end
from (
  select delivery_id, result, coalesce(result -> '$encrypted' ->> 'key', '') as stored_key
  from {hf}result
  where delivery_id > :after_delivery_id::uuid order by delivery_id limit {limit}) s
order by delivery_id

-- name: reencrypt_result
-- Replaces the value unless it has changed since it was read.
update {hf}result set result = :new::text::jsonb
where delivery_id = :delivery_id::uuid and result = :old::text::jsonb
returning delivery_id

-- name: encrypted_steps
-- The next workflow steps: the id of each key, and the value if its key is not the current one.
select run_id, name, occurrence, outcome, result_key,
       case when result_key not in (:current::text, :skipped::text) then result::text end, item_key,
       case when item_key not in (:current::text, :skipped::text) then item::text end
from (
  select run_id, name, occurrence, outcome, result, item,
         case when result is not null then coalesce(result -> '$encrypted' ->> 'key', '') end as result_key,
         case when item is not null then coalesce(item -> '$encrypted' ->> 'key', '') end as item_key
  from {hf}workflow_step
  where (run_id, name, occurrence) > (:after_run_id::uuid, :after_name::text, :after_occurrence::integer)
  order by run_id, name, occurrence limit {limit}) s
order by run_id, name, occurrence

-- name: reencrypt_step_result
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_step set result = :new::text::jsonb
where run_id = :run_id::uuid and name = :name::text and occurrence = :occurrence::integer and result = :old::text::jsonb
returning run_id

-- name: reencrypt_step_item
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_step set item = :new::text::jsonb
where run_id = :run_id::uuid and name = :name::text and occurrence = :occurrence::integer and item = :old::text::jsonb
returning run_id

-- name: encrypted_signals
-- The next signals: the id of each key, and the value if its key is not the current one.
select id, run_id, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then payload::text end
from (
  select id, run_id, payload,
         case when payload is not null then coalesce(payload -> '$encrypted' ->> 'key', '') end as stored_key
  from {hf}workflow_signal
  where id > :after_id::uuid order by id limit {limit}) s
order by id

-- name: reencrypt_signal
-- Replaces the value unless it has changed since it was read.
update {hf}workflow_signal set payload = :new::text::jsonb
where id = :id::uuid and payload = :old::text::jsonb
returning id

-- name: encrypted_schedules
-- The next run-time schedules: the id of each key, and the value if its key is not the current one.
select name, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then args::text end
from (
  select name, args, case when args is not null then coalesce(args -> '$encrypted' ->> 'key', '') end as stored_key
  from {hf}schedule
  where name > :after_name::text and not declared order by name limit {limit}) s
order by name

-- name: reencrypt_schedule
-- Replaces the value unless it has changed since it was read.
update {hf}schedule set args = :new::text::jsonb
where name = :name::text and args = :old::text::jsonb
returning name

-- name: encrypted_responses
-- The next HTTP responses: the id of each key, and the value if its key is not the current one.
-- The headers and the body of a response are written at once, with the same key.
select scope, key, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then response_headers::text end, stored_key,
       case when stored_key not in (:current::text, :skipped::text) then response_body end
from (
  select scope, key, response_headers, response_body,
         case when response_headers is not null
           then coalesce(response_headers -> '$encrypted' ->> 'key', '') end as stored_key
  from {hf}idempotency
  where (scope, key) > (:after_scope::text, :after_key::text) order by scope, key limit {limit}) s
order by scope, key

-- name: reencrypt_response_headers
-- Replaces the value unless it has changed since it was read.
update {hf}idempotency set response_headers = :new::text::jsonb
where scope = :scope::text and key = :key::text and response_headers = :old::text::jsonb
returning scope

-- name: reencrypt_response_body
-- Replaces the value unless it has changed since it was read.
update {hf}idempotency set response_body = :new::bytea
where scope = :scope::text and key = :key::text and response_body = :old::bytea
returning scope

-- name: encrypted_endpoints
-- The next endpoints with their values; there are few, so all are returned.
select id, null, headers::text, null, secret, null, previous_secret
from {hf}endpoint
where id > :after_id::text order by id limit {limit}

-- name: reencrypt_endpoint_headers
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set headers = :new::text::jsonb
where id = :id::text and headers = :old::text::jsonb
returning id

-- name: reencrypt_secret
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set secret = :new::text
where id = :id::text and secret = :old::text
returning id

-- name: reencrypt_previous_secret
-- Replaces the value unless it has changed since it was read.
update {hf}endpoint set previous_secret = :new::text
where id = :id::text and previous_secret = :old::text
returning id
