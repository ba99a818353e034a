-- Webhook endpoints. Each is a separate consumer, so that it does not affect the deliveries of another one.
create table {hf}endpoint (
  id              text primary key,
  consumer        text not null unique references {hf}consumer (name),
  url             text not null,
  tenant          text,
  events          text[] not null,
  headers         jsonb not null,
  secret          text not null,
  previous_secret text,
  previous_until  timestamptz,
  rate            double precision,
  concurrency     integer not null,
  created_at      timestamptz not null default now(),
  disabled_at     timestamptz,
  disabled_reason text
);

-- What a run reported in addition to its outcome, such as the response of a webhook receiver; JSON.
alter table {hf}run add column detail text;
