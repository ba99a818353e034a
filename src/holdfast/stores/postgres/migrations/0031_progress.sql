-- What runs report about their progress, one row per delivery that reports any. It belongs to the run with this fence: a
-- later claim or a replay hides it. A small table, because each report of a long run leaves a dead row version.
create table {hf}progress (
  delivery_id uuid primary key,
  fence       bigint not null,
  fraction    double precision not null,
  note        text,
  reported_at timestamptz not null default now()
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
