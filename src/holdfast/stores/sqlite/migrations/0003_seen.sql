-- The deduplication window: keys that a consumer has dealt with, for a while.
create table {hf}seen (
  consumer   text not null,
  key        text not null,
  expires_at integer not null,
  primary key (consumer, key)
);
create index {hf}seen_expiry on {hf}seen (expires_at);
