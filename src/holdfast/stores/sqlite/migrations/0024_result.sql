-- Results of handlers that keep them (`result="1h"`). A result belongs to the claim that settled its delivery: with
-- another fence it is the result of an earlier cycle, which no reader returns. It may outlive the delivery.
create table {hf}result (
  delivery_id text primary key,
  message_id  text not null,
  consumer    text not null,
  fence       integer not null,
  result      text not null,
  stored_at   integer not null default ({now}),
  expires_at  integer not null
);
create index {hf}result_expiry on {hf}result (expires_at);
