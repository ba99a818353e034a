"""A log of every change of a delivery, written by triggers of the database in the order of the commits.

On PostgreSQL the triggers are deferred to the commit and take one lock until it has ended, so the numbers of the log are
the order in which transactions became visible. SQLite has one writer at a time.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg

from tests.servers.sessions import execute

_POSTGRES = """
create table flow_log (
  n bigserial primary key, began double precision, at double precision, event text, consumer text, queue text,
  delivery text, message text, key text, was text, is_now text, discarded boolean, superseded boolean, suspect boolean,
  run_at double precision, created_at double precision, worker text);
create function log_delivery() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock(4711);
  insert into flow_log (began, at, event, consumer, queue, delivery, message, was, is_now, discarded, superseded, suspect,
                        run_at, created_at, worker)
  values (extract(epoch from now()) * 1000, extract(epoch from clock_timestamp()) * 1000, 'delivery', new.consumer,
          new.queue, new.id, new.message_id, case when tg_op = 'UPDATE' then old.status end, new.status,
          new.discarded_at is not null, coalesce(new.error_type = 'superseded', false), new.suspect,
          extract(epoch from case when tg_op = 'UPDATE' then old.run_at else new.run_at end) * 1000,
          extract(epoch from new.created_at) * 1000, new.locked_by);
  return null;
end $$;
create function log_pause() returns trigger language plpgsql as $$
declare key record;
begin
  perform pg_advisory_xact_lock(4711);
  key := case when tg_op = 'INSERT' then new else old end;
  insert into flow_log (began, at, event, consumer, key)
  values (extract(epoch from now()) * 1000, extract(epoch from clock_timestamp()) * 1000,
          case when tg_op = 'INSERT' then 'pause' else 'resume' end, key.consumer, key.flow_key);
  return null;
end $$;
create constraint trigger log_publish after insert on {hf}delivery deferrable initially deferred
  for each row execute function log_delivery();
create constraint trigger log_delivery after update on {hf}delivery deferrable initially deferred
  for each row when (new.status <> old.status or (new.discarded_at is null) <> (old.discarded_at is null))
  execute function log_delivery();
create constraint trigger log_pause after insert or delete on {hf}flow_pause deferrable initially deferred
  for each row execute function log_pause();
"""
_NOW = "(julianday('now') - 2440587.5) * 86400000.0"
_SQLITE = f"""
create table flow_log (
  n integer primary key, began real, at real, event text, consumer text, queue text, delivery text, message text,
  key text, was text, is_now text, discarded integer, superseded integer, suspect integer, run_at real,
  created_at real, worker text);
create trigger log_publish after insert on {{hf}}delivery begin
  insert into flow_log (began, at, event, consumer, queue, delivery, message, is_now, discarded, superseded, suspect,
                        run_at, created_at)
  values ({_NOW}, {_NOW}, 'delivery', new.consumer, new.queue, new.id, new.message_id, new.status,
          new.discarded_at is not null, coalesce(new.error_type = 'superseded', 0), new.suspect, new.run_at,
          new.created_at);
end;
create trigger log_delivery after update on {{hf}}delivery
when new.status <> old.status or (new.discarded_at is null) <> (old.discarded_at is null) begin
  insert into flow_log (began, at, event, consumer, queue, delivery, message, was, is_now, discarded, superseded, suspect,
                        run_at, created_at, worker)
  values ({_NOW}, {_NOW}, 'delivery', new.consumer, new.queue, new.id, new.message_id, old.status, new.status,
          new.discarded_at is not null, coalesce(new.error_type = 'superseded', 0), new.suspect, old.run_at,
          new.created_at, new.locked_by);
end;
create trigger log_pause after insert on {{hf}}flow_pause begin
  insert into flow_log (began, at, event, consumer, key) values ({_NOW}, {_NOW}, 'pause', new.consumer, new.flow_key);
end;
create trigger log_resume after delete on {{hf}}flow_pause begin
  insert into flow_log (began, at, event, consumer, key) values ({_NOW}, {_NOW}, 'resume', old.consumer, old.flow_key);
end;
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One change: of a delivery, or of the pause of a key. Times are milliseconds; the transaction began at `began`."""

    began: float
    at: float
    event: str
    consumer: str
    queue: str = ""
    delivery: str = ""
    key: str = ""
    number: int = 0
    was: str | None = None
    now: str = ""
    discarded: bool = False
    superseded: bool = False
    suspect: bool = False
    run_at: float = 0.0
    created_at: float = 0.0
    worker: str | None = None

    @property
    def is_claim(self) -> bool:
        return self.was == "pending" and self.now == "in_flight"


class Database:
    """The database under test, behind the store's back."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.on_sqlite = dsn.startswith("sqlite")

    def connect(self) -> Any:
        if self.on_sqlite:
            return sqlite3.connect(self.dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        return psycopg.connect(self.dsn, autocommit=True)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        text = text.replace("{hf}", self.prefix)
        if not self.on_sqlite:
            return execute(self.dsn, text)
        with closing(self.connect()) as connection:
            return list(connection.execute(text).fetchall())

    @property
    def prefix(self) -> str:
        return "holdfast_" if self.on_sqlite else "holdfast."

    def install(self) -> None:
        """Creates the log and its triggers."""
        with closing(self.connect()) as connection:
            if self.on_sqlite:
                connection.executescript(_SQLITE.replace("{hf}", self.prefix))
            else:
                connection.execute(_POSTGRES.replace("{hf}", self.prefix))

    def records(self) -> Iterator[Record]:
        """The log. Keys and numbers are those of the payloads, not those that the engine stored."""
        bodies = {
            str(id): payload if isinstance(payload, dict) else orjson.loads(payload)
            for id, payload in self.sql("select id, payload from {hf}message")
        }
        rows = self.sql(
            "select began, at, event, consumer, queue, delivery, message, key, was, is_now, discarded, superseded, "
            "suspect, run_at, created_at, worker from flow_log order by n"
        )
        for began, at, event, consumer, queue, delivery, message, key, was, now, discarded, superseded, *rest in rows:
            suspect, run_at, created_at, worker = rest
            body = bodies.get(str(message), {})
            yield Record(
                float(began), float(at), event, consumer, queue or "", delivery or "", key or body.get("k", ""),
                int(body.get("n", 0)), was, now or "", bool(discarded), bool(superseded), bool(suspect),
                float(run_at or 0), float(created_at or 0), worker,
            )  # fmt: skip
