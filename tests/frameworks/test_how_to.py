"""The programs of the pages about web frameworks, as printed, in this process."""

import asyncio
import logging
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import Holdfast, WorkerOptions

PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks"
HEADERS = {"Authorization": "Bearer ada-secret", "Idempotency-Key": "8e03978e", "X-Request-ID": "r-1"}


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the program on a page; its database is in the folder of the test."""
    pytest.importorskip(request.param, reason=f"the program on its page needs {request.param}")
    monkeypatch.chdir(tmp_path)
    text = (PAGES / f"{request.param}.md").read_text(encoding="utf-8")
    ((name, source),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert name == f"{request.param}_shop.py"
    module = ModuleType(name.removesuffix(".py"))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # Litestar reads annotations from there
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))  # noqa: S102
    return vars(module)


def rows(text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("shop.db")) as db:
        return db.execute(text).fetchall()


def check(post: Callable[[], Any]) -> None:
    """The same request twice places one order, with one event under the id of the request."""
    first, again = post(), post()
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotent-replayed"] == "true"
    assert rows("select item from orders") == [("tea",)]
    ((headers,),) = rows("select headers from holdfast_message where type = 'order.placed'")
    if "x-request-id" in first.headers:
        assert (first.headers["x-request-id"], again.headers["x-request-id"]) == ("r-1", "r-1")
        assert '"r-1"' in headers


def await_delivery() -> None:
    deadline = time.monotonic() + 20
    while not rows("select 1 from holdfast_delivery where status = 'delivered'"):
        assert time.monotonic() < deadline, rows("select status, last_error from holdfast_delivery")
        time.sleep(0.005)


@pytest.mark.parametrize("program", ["fastapi", "starlette", "litestar"], indirect=True)
def test_an_application_with_a_lifespan_runs_its_worker(program: dict[str, Any]) -> None:
    clients: Any = import_module("litestar.testing" if "Litestar" in program else "starlette.testclient")
    with clients.TestClient(program["app"]) as client:
        check(lambda: client.post("/orders?item=tea", headers=HEADERS))
        await_delivery()


@pytest.mark.parametrize("program", ["quart"], indirect=True)
async def test_quart_runs_its_worker_while_it_serves(program: dict[str, Any]) -> None:
    app = program["app"]
    async with app.test_app() as running:
        client = running.test_client()
        answers = [await client.post("/orders?item=tea", headers=HEADERS) for _ in range(2)]
        check(iter(answers).__next__)
        await asyncio.to_thread(await_delivery)


@pytest.mark.parametrize("program", ["flask"], indirect=True)
def test_flask_publishes_for_a_worker_of_another_process(program: dict[str, Any]) -> None:
    client = program["app"].test_client()
    check(lambda: client.post("/orders?item=tea", headers=HEADERS))
    hf: Holdfast = program["hf"]
    hf.run(until_idle=True)
    await_delivery()
    program["engine"].dispose()


def test_sessions_of_sqlmodel_are_sessions_of_sqlalchemy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlmodel = pytest.importorskip("sqlmodel", reason="this test needs sqlmodel")
    monkeypatch.chdir(tmp_path)
    hf = Holdfast("sqlite:///shop.db")
    engine = sqlmodel.create_engine("sqlite:///shop.db")
    with sqlmodel.Session(engine) as session, session.begin():
        hf.sync.publish("order.placed", {"item": "tea"}, conn=session)
    with sqlmodel.Session(engine) as session:
        hf.sync.publish("order.placed", {"item": "milk"}, conn=session)
        session.rollback()
    engine.dispose()
    assert rows("select json_extract(payload, '$.item') from holdfast_message") == [("tea",)]


async def test_loguru_gets_the_lines_of_an_embedded_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    loguru = pytest.importorskip("loguru", reason="this test needs loguru")

    class Intercept(logging.Handler):
        """As loguru's documentation has it."""

        def emit(self, record: logging.LogRecord) -> None:
            loguru.logger.opt(exception=record.exc_info).log(record.levelname, record.getMessage())

    hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")

    @hf.consumer("order.placed", dead_on=(ValueError,))
    async def fail(order: dict[str, Any]) -> None:
        raise ValueError("no stock")

    lines: list[str] = []
    loguru.logger.remove()
    loguru.logger.add(lines.append, format="{level} {message}")
    logger, handler = logging.getLogger("holdfast"), Intercept()
    logger.addHandler(handler)
    try:
        await hf.publish("order.placed", {}, conn=None)
        await hf.work(WorkerOptions(until_idle=True, cron=False, idle_limit=timedelta(0)))
        await hf.close()
    finally:
        logger.removeHandler(handler)
        loguru.logger.remove()
    assert any(line.startswith("ERROR dead letter") and "no stock" in line for line in lines)
    assert capfd.readouterr().out == ""
