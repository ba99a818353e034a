-- Webhook endpoints. Each is a consumer of its own, so that what it does to its deliveries it does to no other's.
create table {hf}endpoint (
  id              text primary key,
  consumer        text not null unique references {hf}consumer (name),
  url             text not null,
  tenant          text,
  events          text not null,
  headers         text not null,
  secret          text not null,
  previous_secret text,
  previous_until  integer,
  rate            real,
  concurrency     integer not null,
  created_at      integer not null default ({now}),
  disabled_at     integer,
  disabled_reason text
);

-- What a run brought to light beside its outcome, such as the answer of a webhook's receiver; JSON.
alter table {hf}run add column detail text;
