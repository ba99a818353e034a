-- Results of handlers that keep them (`result="1h"`). A result belongs to the claim that settled its delivery: with
-- another fence it is the result of an earlier cycle, which no reader returns. It may outlive the delivery.
create table {hf}result (
  delivery_id uuid primary key,
  message_id  uuid not null,
  consumer    text not null,
  fence       bigint not null,
  result      jsonb not null,
  stored_at   timestamptz not null default now(),
  expires_at  timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.01);
create index result_expiry on {hf}result (expires_at);
