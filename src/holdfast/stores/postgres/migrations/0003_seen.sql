-- The deduplication window: keys that a consumer has handled recently.
create table {hf}seen (
  consumer   text not null,
  key        text not null,
  expires_at timestamptz not null,
  primary key (consumer, key)
);
create index seen_expiry on {hf}seen (expires_at);
