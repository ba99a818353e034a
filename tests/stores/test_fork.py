"""Forking after a store was used: the child opens new connections, and the parent's stay usable."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.support.builders import sql

_PRELUDE = """
import asyncio, faulthandler, os, signal, sys, threading
from holdfast.stores.queries.delivery_counts import counts
from tests.support.builders import job, put
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
{open_store}

# A process that hangs prints its stack.
faulthandler.register(signal.SIGALRM, chain=True)
signal.alarm(50)

def write():
    store.run_sync(publish([job()], Fanout()))

def write_async():
    asyncio.run(put(store, job()))

def in_child(work):
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit("the child failed")

write()
write_async()
"""

_USES = """
def use():
    write_async()
    write()
    asyncio.run(store.close())

in_child(use)
write()
in_child(use)
write()
"""

_CLOSES = """
in_child(store.close_sync)
write()
in_child(lambda: asyncio.run(store.close()))
write()
"""

_BUSY = """
from holdfast.stores.operation import Query, operation

held, go = threading.Event(), threading.Event()

@operation(reads=True)
def read_slowly():
    yield Query("clock")
    held.set()
    go.wait(30)

threading.Thread(target=store.run_sync, args=(read_slowly(),), daemon=True).start()
if not held.wait(20):
    sys.exit("the other thread does not read")
in_child(write)
go.set()
write()
"""

_MIDWAY = """
from holdfast.stores.operation import Query, operation

@operation
def midway():
    yield Query("pause_queue", {"name": "slow"})
    in_child(store.close_sync)
    yield Query("pause_queue", {"name": "fast"})

store.run_sync(midway())
"""


def run(store: Store, script: str) -> None:
    if isinstance(store, PostgresStore):
        opened = "from holdfast.stores.postgres.store import PostgresStore as S\nstore = S(sys.argv[1], pool_size=1)"
        place = store.conninfo
    else:
        opened = "from holdfast.stores.sqlite.store import SqliteStore as S\nstore = S(sys.argv[1])"
        place = str(store.path)  # type: ignore[attr-defined]
    program = _PRELUDE.replace("{open_store}", opened) + script + "\nstore.close_sync()\n"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, place], check=True, timeout=60)


def written(store: Store) -> int:
    ((count,),) = sql(store, "select count(*) from {hf}delivery")
    return int(str(count))


@pytest.fixture
def opened(place: Callable[[], Store]) -> Store:
    """Not opened in this process, so that only the script's own connections count."""
    return place()


def test_parent_and_child_use_the_store_in_turn(opened: Store) -> None:
    run(opened, _USES)
    assert written(opened) == 2 + 2 + 1 + 2 + 1


def test_a_child_that_closes_the_store_leaves_the_parents_open(opened: Store) -> None:
    run(opened, _CLOSES)
    assert written(opened) == 2 + 2


def test_a_thread_at_work_at_the_fork_does_not_hang_the_child(opened: Store) -> None:
    run(opened, _BUSY)
    assert written(opened) == 2 + 2


def test_a_fork_inside_a_transaction_leaves_it_whole(opened: Store) -> None:
    run(opened, _MIDWAY)
    assert sql(opened, "select name from {hf}queue order by name") == [("fast",), ("slow",)]
