"""The faults: each one breaks something for so many seconds, and returns when it has ended."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGQUIT, SIGTERM

import psutil
import psycopg

from chaos.laboratory import LEASE, START_SECONDS, Laboratory
from tests.engine.programs.place import until
from tests.engine.programs.proxy import Fault as ConnectionFault
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer

Inject = Callable[[Laboratory, float], None]
_CONNECTED = ("holdfast", "holdfast-lease", "chaos")


class FaultUnavailable(Exception):
    """The fault cannot be injected on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, and the stores that it exists on."""

    name: str
    meaning: str
    stores: tuple[str, ...]
    inject: Inject


def _times(lab: Laboratory, seconds: float, least: float, most: float) -> Iterator[None]:
    """Yields again and again until the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(lab.random.uniform(least, most))


# Processes


def kill_workers(lab: Laboratory, seconds: float) -> None:
    for _ in _times(lab, seconds, 0.8, 2.0):
        lab.random.choice(lab.workers).process.kill_family()
        if lab.rebuild is not None:
            lab.rebuild.process.signal(SIGKILL)


def pause_worker(lab: Laboratory, seconds: float) -> None:
    """For longer than its lease. On SQLite not inside a write, which would keep everybody out."""
    victim = lab.random.choice(lab.workers).process
    for _ in _times(lab, seconds, 0.2, 0.5):
        lab.store.stop(victim)
        time.sleep(1.5 * LEASE)
        victim.resumed()


def stop_workers(lab: Laboratory, seconds: float) -> None:
    for _ in _times(lab, seconds, 1.5, 2.5):
        lab.random.choice(lab.workers).process.signal(SIGTERM)


def kill_clients(lab: Laboratory, seconds: float) -> None:
    names = [name for name in ("client", "http") if name in lab.programs]
    for _ in _times(lab, seconds, 1.0, 2.0):
        lab.programs[lab.random.choice(names)].process.kill()


# The database server


def kill_server(lab: Laboratory, seconds: float) -> None:
    server = _server(lab)
    server.kill()
    time.sleep(min(seconds, 2.0))
    server.start()
    time.sleep(max(0.0, seconds - 2.0))


def restart_server(lab: Laboratory, seconds: float) -> None:
    for _ in _times(lab, seconds, 1.5, 3.0):
        _server(lab).restart()


def shut_down_immediately(lab: Laboratory, seconds: float) -> None:
    server = _server(lab)
    for _ in _times(lab, seconds, 1.5, 3.0):
        os.kill(server.pid, SIGQUIT)
        while server.running:
            time.sleep(0.02)
        server.start()


def pause_server(lab: Laboratory, seconds: float) -> None:
    """The server and every backend stand still for longer than a lease; the kernel keeps the connections."""
    process = psutil.Process(_server(lab).pid)
    paused = [process, *process.children(recursive=True)]
    for one in paused:
        with suppress(psutil.NoSuchProcess):
            one.suspend()
    try:
        time.sleep(max(seconds / 2, 1.5 * LEASE))
    finally:
        for one in paused:
            with suppress(psutil.NoSuchProcess):
                one.resume()


def terminate_backends(lab: Laboratory, seconds: float) -> None:
    for _ in _times(lab, seconds, 0.2, 0.3):
        with suppress(psycopg.OperationalError):  # no connection is free for the lab either
            lab.store.terminate_backends()


def exhaust_connections(lab: Laboratory, seconds: float) -> None:
    """Takes every connection that becomes free."""
    held: list[psycopg.Connection] = []
    deadline = time.monotonic() + seconds
    with suppress(psycopg.OperationalError):
        lab.store.terminate_backends()
    try:
        while time.monotonic() < deadline:
            try:
                held.append(psycopg.connect(lab.store.dsn, application_name="test", connect_timeout=3))
            except psycopg.OperationalError:
                time.sleep(0.02)
    finally:
        for connection in held:
            connection.close()


def turn_read_only(lab: Laboratory, seconds: float) -> None:
    name = lab.store.dsn.rpartition("/")[2]
    lab.store.sql(f"alter database {name} set default_transaction_read_only = on")
    lab.store.terminate_backends()
    time.sleep(seconds)
    # Sessions that began in between stay read-only until they end, as those to an old primary do.
    lab.store.sql(f"alter database {name} reset default_transaction_read_only")


# The network


def delay(lab: Laboratory, seconds: float) -> None:
    with _proxy(lab).slow(0.05):
        time.sleep(seconds)


def drop(lab: Laboratory, seconds: float) -> None:
    for _ in _times(lab, seconds, 0.5, 1.0):
        with _proxy(lab).away():
            time.sleep(lab.random.uniform(0.2, 1.5))


def half_open(lab: Laboratory, seconds: float) -> None:
    """Connections that are open now are never answered again, and nothing closes them."""
    proxy = _proxy(lab)
    with proxy.faulty(ConnectionFault.SILENT, roles=_CONNECTED):
        time.sleep(seconds)
    # A peer that is gone: at some time its network reports that.
    proxy.cut()


def lose_replies(lab: Laboratory, seconds: float) -> None:
    _lose(lab, seconds, forward=True)


def lose_statements(lab: Laboratory, seconds: float) -> None:
    _lose(lab, seconds, forward=False)


def _lose(lab: Laboratory, seconds: float, *, forward: bool) -> None:
    """The reply to a COMMIT, a claim or a settlement is lost, or the statement itself if it is not forwarded."""
    proxy = _proxy(lab)
    before = proxy.lost
    for _ in _times(lab, seconds, 0.05, 0.2):
        proxy.lose(lab.random.choice(("COMMIT", "'in_flight'", "'delivered'", "insert into")), forward=forward)
    proxy.lose_nothing()
    if proxy.lost == before:
        raise RuntimeError("no statement was lost")


# The machine


def fill_disk(lab: Laboratory, seconds: float) -> None:
    disk = lab.store.disk
    if disk is None or disk.problem:
        raise FaultUnavailable(disk.problem if disk is not None else "the store is not on a small disk")
    with disk.full():
        time.sleep(seconds)
    server = lab.store.server
    if server is not None:
        # PostgreSQL ends when it cannot write its log; the operator starts it when there is space again.
        time.sleep(1.0)
        server.start()


def jump_clock(lab: Laboratory, seconds: float) -> None:
    """One more worker, whose clock jumps by hours."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise FaultUnavailable("libfaketime is not installed; on Debian: apt-get install libfaketime")
    clock = lab.directory / "clock"
    clock.write_text("+0")
    worker = lab.worker(
        {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
        }
    )
    registered = len(lab.workers) + 1
    until(lambda: len(lab.store.sql("select 1 from {hf}worker")) >= registered, "it does not start", START_SECONDS)
    for _ in _times(lab, seconds, 0.5, 1.5):
        clock.write_text(f"{lab.random.choice((-2, 0, 2)):+}h")
    worker.kill_family()


def hold_write_lock(lab: Laboratory, seconds: float) -> None:
    """Another program has a write transaction open on the file."""
    for _ in _times(lab, seconds, 0.3, 0.6):
        with closing(lab.store.connect_file()) as db:
            db.execute("begin immediate")
            time.sleep(lab.random.uniform(0.5, 1.5))
            db.execute("rollback")


# Others


def kill_brokers(lab: Laboratory, seconds: float) -> None:
    if not lab.brokers:
        raise FaultUnavailable("no load needs a broker")
    for broker in lab.brokers:
        broker.broker.restart()


def pause_brokers(lab: Laboratory, seconds: float) -> None:
    if not lab.brokers:
        raise FaultUnavailable("no load needs a broker")
    with _paused_brokers(lab):
        time.sleep(seconds)


@contextmanager
def _paused_brokers(lab: Laboratory) -> Iterator[None]:
    for broker in lab.brokers:
        broker.pause()
    try:
        yield
    finally:
        for broker in lab.brokers:
            broker.resume()


def fail_receiver(lab: Laboratory, seconds: float) -> None:
    lab.receiver.status = 503
    time.sleep(seconds / 2)
    lab.receiver.hanging.set()
    time.sleep(seconds / 2)
    lab.receiver.recover()


def fail_over(lab: Laboratory, seconds: float) -> None:
    """The primary is killed and does not come back; the standby is promoted."""
    standby = lab.store.standby
    assert standby is not None
    _server(lab).kill()
    time.sleep(1.0)
    standby.promote()
    lab.store.server = standby
    time.sleep(max(0.0, seconds - 1.0))


def _server(lab: Laboratory) -> PostgresServer:
    assert lab.store.server is not None
    return lab.store.server


def _proxy(lab: Laboratory) -> Proxy:
    assert lab.store.proxy is not None
    return lab.store.proxy


_EVERY = ("sqlite", "postgres")
_POSTGRES = ("postgres",)

FAULTS = (
    Fault("kill worker", "workers and a rebuild get SIGKILL again and again", _EVERY, kill_workers),
    Fault("pause worker", "SIGSTOP for longer than the lease, then SIGCONT", _EVERY, pause_worker),
    Fault("stop worker", "SIGTERM, as in a deploy", _EVERY, stop_workers),
    Fault("kill client", "the publisher and the HTTP server get SIGKILL", _EVERY, kill_clients),
    Fault("kill server", "the database server and its backends get SIGKILL", _POSTGRES, kill_server),
    Fault("restart server", "fast shutdown and start", _POSTGRES, restart_server),
    Fault("immediate shutdown", "SIGQUIT and start with recovery", _POSTGRES, shut_down_immediately),
    Fault("pause server", "the server and its backends stand still for longer than a lease", _POSTGRES, pause_server),
    Fault("terminate backends", "every session is ended four times a second", _POSTGRES, terminate_backends),
    Fault("exhaust connections", "another program takes every free connection", _POSTGRES, exhaust_connections),
    Fault("read-only", "the database refuses writes", _POSTGRES, turn_read_only),
    Fault("delay", "each message takes 50 ms longer in each direction", _POSTGRES, delay),
    Fault("drop", "connections are reset, and for a moment none is accepted", _POSTGRES, drop),
    Fault("half-open", "connections stay open and nothing is answered", _POSTGRES, half_open),
    Fault("lose reply", "a commit, claim or settlement is done and its reply is lost", _POSTGRES, lose_replies),
    Fault("lose statement", "a commit, claim or settlement is never sent", _POSTGRES, lose_statements),
    Fault("disk full", "nothing can be written to the disk of the database", _EVERY, fill_disk),
    Fault("clock jump", "the clock of a worker jumps by hours", _POSTGRES, jump_clock),
    Fault("write lock", "another program holds the write lock of the file", ("sqlite",), hold_write_lock),
    Fault("kill brokers", "each broker, or one of its nodes, is killed and started", _EVERY, kill_brokers),
    Fault("pause brokers", "no broker answers", _EVERY, pause_brokers),
    Fault("receiver down", "the receiver of webhooks answers 503, then hangs", _EVERY, fail_receiver),
    Fault("failover", "the primary is killed, and its synchronous standby is promoted", ("cluster",), fail_over),
)
