-- Runs that were cancelled while a worker ran them. The worker reads them when it renews its lease, and stops the
-- handler. fence is the one of the cancelled run.
create table {hf}cancellation (
  worker      text not null,
  delivery_id uuid not null,
  fence       bigint not null,
  primary key (worker, delivery_id, fence)
);
