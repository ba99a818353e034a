-- What runs report about their progress, one row per delivery that reports any. It belongs to the run with this fence: a
-- later claim or a replay hides it.
create table {hf}progress (
  delivery_id text primary key,
  fence       integer not null,
  fraction    real not null,
  note        text,
  reported_at integer not null default ({now})
);
