"""A real server with several processes, many clients with one key, and processes that are killed at the worst moment."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psutil
import psycopg
import pytest

from holdfast.runtime.store_factory import open_store
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port

pytestmark = pytest.mark.long

WORKERS = 2
PATIENCE = 60.0


@dataclass
class Server:
    """Uvicorn with several processes, restarted by their parent when they die."""

    url: str
    dsn: str
    marks: Path
    process: "subprocess.Popen[bytes]"

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        if self.dsn.startswith("sqlite"):
            with closing(sqlite3.connect(self.dsn.removeprefix("sqlite:///"), timeout=20)) as conn:
                return conn.execute(text.replace("{hf}", "holdfast_")).fetchall()
        with psycopg.connect(self.dsn) as conn:
            return conn.execute(text.replace("{hf}", "holdfast.")).fetchall()

    def effects(self, tenant: str) -> int:
        return int(self.rows(f"select count(*) from orders where tenant = '{tenant}'")[0][0])

    def die_at(self, place: str) -> None:
        (self.marks / place).touch()

    @property
    def workers(self) -> list[int]:
        """Those that serve; the parent's own helper process is not among them."""
        found = []
        for one in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # killed before, and its parent has not noticed yet
                if "spawn_main" in " ".join(one.cmdline()):
                    found.append(one.pid)
        return found


@pytest.fixture(scope="module", params=["sqlite", "postgres18"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "sqlite":
        dsn = f"sqlite:///{folder}/shop.db"
        made = "create table orders (id integer primary key, tenant text, item text)"
        with closing(sqlite3.connect(folder / "shop.db")) as conn:
            conn.execute("pragma journal_mode = wal")
            conn.execute(made)
    else:
        postgres: PostgresServer = request.getfixturevalue(request.param)
        dsn = postgres.create_database(f"http_{uuid4().hex}")
        with psycopg.connect(dsn) as connection:
            connection.execute("create table orders (id serial primary key, tenant text, item text)")
    store = open_store(dsn)
    store.migrate()
    store.close_sync()
    port = free_port()
    marks = folder / "marks"
    marks.mkdir()
    command = [sys.executable, "-m", "uvicorn", "tests.idempotency.programs.shop:api", "--port", str(port)]
    command += ["--workers", str(WORKERS), "--log-level", "warning"]
    log = (folder / "log").open("wb")
    environment = {**os.environ, "HOLDFAST_DSN": dsn, "MARKS": str(marks)}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        ready(f"http://127.0.0.1:{port}", process, folder / "log")
        yield Server(f"http://127.0.0.1:{port}", dsn, marks, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        log.close()


def ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            httpx2.get(f"{url}/who", timeout=5).raise_for_status()
            return
        except httpx2.HTTPError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=200)
    async with httpx2.AsyncClient(timeout=20, limits=limits) as client:
        yield client


async def order(client: httpx2.AsyncClient, server: Server, tenant: str, item: str = "tea") -> httpx2.Response | None:
    """One try; none when the connection broke."""
    headers = {"Idempotency-Key": '"one-key"', "x-tenant": tenant}
    try:
        return await client.post(f"{server.url}/orders", json={"item": item}, headers=headers)
    except httpx2.TransportError:
        return None


async def until_answered(
    client: httpx2.AsyncClient, server: Server, tenant: str, patience: float = PATIENCE
) -> tuple[bytes, set[int]]:
    """Tries again until it is answered, as a client does; the answer, and the other statuses it met."""
    met: set[int] = set()
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        response = await order(client, server, tenant)
        if response is not None and response.status_code == 201:
            return response.content, met
        met.add(0 if response is None else response.status_code)
        await asyncio.sleep(random.uniform(0.05, 0.3))
    raise AssertionError(f"never answered: {met}")


async def test_a_hundred_at_once_have_one_effect_and_agree(server: Server, client: httpx2.AsyncClient) -> None:
    tenant = uuid4().hex
    answers = [one for one in await asyncio.gather(*(order(client, server, tenant) for _ in range(100))) if one]
    assert len(answers) == 100
    assert {one.status_code for one in answers} <= {201, 409}
    assert len({one.content for one in answers if one.status_code == 201}) == 1
    assert all(one.json()["code"] == "idempotent-request-in-progress" for one in answers if one.status_code == 409)
    assert server.effects(tenant) == 1
    refused = await order(client, server, tenant, "coffee")
    assert refused is not None
    assert refused.json()["code"] == "idempotency-key-reused"
    other = await order(client, server, uuid4().hex)
    assert other is not None
    assert other.content not in {one.content for one in answers}


@pytest.mark.parametrize("place", ["reserved", "completing", "committed"])
async def test_a_process_killed_on_the_way_leaves_one_effect_and_no_key_stuck(
    server: Server, client: httpx2.AsyncClient, place: str
) -> None:
    tenant = uuid4().hex
    server.die_at(place)
    answers = await asyncio.gather(*(until_answered(client, server, tenant) for _ in range(30)))
    assert not (server.marks / place).exists()  # a process crashed there
    assert len({answer for answer, _ in answers}) == 1
    assert set.union(*(met for _, met in answers)) <= {0, 409, 503}
    assert server.effects(tenant) == 1
    events = server.rows("select count(*) from {hf}message m join orders o on m.payload ->> 'order_id' = "
                         f"cast(o.id as text) where o.tenant = '{tenant}'")  # fmt: skip
    assert events == [(1,)]
    statuses = server.rows(f"select status from {{hf}}idempotency where scope = '{tenant}'")
    assert statuses == [("completed",)]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_processes_killed_at_any_moment_never_double_an_effect(
    server: Server, client: httpx2.AsyncClient, seed: int
) -> None:
    """Faster than they can be started again; when it ends, every client is answered and no key is stuck."""
    chance = random.Random(seed)
    tenants = [uuid4().hex for _ in range(20)]
    each = 10

    def kill(wanted: int) -> int:
        # In a thread: hundreds of clients keep the loop too busy to be on time.
        end, kills = time.monotonic() + PATIENCE, 0
        while kills < wanted and time.monotonic() < end:
            time.sleep(chance.uniform(0.2, 1.5))
            if workers := server.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    kills += 1
        return kills

    async def late(tenant: str, after: float) -> tuple[bytes, set[int]]:
        await asyncio.sleep(after)
        return await until_answered(client, server, tenant, patience=2 * PATIENCE)

    began = [(tenant, random.uniform(0, 18)) for tenant in tenants]
    clients = [
        asyncio.create_task(late(tenant, at + random.uniform(0, 0.5))) for tenant, at in began for _ in range(each)
    ]
    kills = await asyncio.to_thread(kill, 12)
    answers = await asyncio.gather(*clients)
    for n, tenant in enumerate(tenants):
        assert len({answer for answer, _ in answers[n * each : (n + 1) * each]}) == 1
        assert server.effects(tenant) == 1
    assert server.rows("select count(*) from {hf}idempotency where status = 'started'") == [(0,)]
    assert kills == 12
