"""The files and commands of the tutorial, as printed."""

import re
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.interfaces.cli import main
from tests.servers.postgres import PostgresServer

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
HEADERS = {"Authorization": "Bearer ada-secret", "Idempotency-Key": "order-1"}


@pytest.mark.long
def test_the_steps_on_sqlite_do_what_the_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOLDFAST_APP", "shop:hf")
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    script, _, _ = PAGE.partition("\n## 5. ")
    printed = []
    for name, program, commands in re.findall(
        r"```(?:python\n# (\w+\.py)\n(.*?)|console\n(.*?))```", script, re.DOTALL
    ):
        if name:
            Path(name).write_text(program)
        printed += [(line, _run(line[2:])) for line in commands.splitlines() if line.startswith("$ ")]
    found = dict(printed)
    assert "ConnectionError: mail server is down" in found["$ holdfast dlq groups"]
    receipts = [text.strip() for line, text in printed if line == "$ holdfast worker --until-idle"]
    assert receipts[:3] == ["receipt 1 to ada@example.com", "", "receipt 2 to bob@example.com"]
    assert receipts[3].startswith("receipt 3 to ada@example.com, idempotency key ")
    for text in receipts[:3]:
        assert text in PAGE
    assert found["$ holdfast deliveries list"].count("count_orders") == 3
    assert "1 passed" in found["$ pytest test_shop.py"]


def _run(command: str) -> str:
    """What a command printed. Installing, exporting and making the environment are left out."""
    program, *words = shlex.split(command)
    if program in ("touch", "rm"):
        getattr(Path(words[0]), "touch" if program == "touch" else "unlink")()
    elif program == "holdfast":
        sys.modules.pop("shop", None)  # as in a new process
        shown = CliRunner().invoke(main, words)
        assert shown.exit_code == 0, shown.output
        return shown.stdout
    elif words[:1] == ["shop.py"]:
        runpy.run_path("shop.py")["place_order"](words[1])
    elif program == "pytest":
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout
    return ""


@pytest.mark.long
def test_the_service_places_an_order_once_and_has_a_console(
    postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    dsn = postgres18.create_database("tutorial")
    monkeypatch.setenv("HOLDFAST_DSN", dsn)
    assert "$ holdfast schema migrate\n" in PAGE
    assert CliRunner().invoke(main, ["schema", "migrate"]).exit_code == 0
    ((_, program),) = re.findall(r"```python\n# (web)\.py\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("web")
    monkeypatch.setitem(sys.modules, "web", module)  # FastAPI reads annotations from there
    exec(compile(program, "web.py", "exec", dont_inherit=True), vars(module))  # noqa: S102
    with TestClient(vars(module)["app"], base_url="http://localhost") as client:
        answers = [client.post("/orders?email=ada@example.com", headers=HEADERS) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
        assert answers[1].headers["idempotent-replayed"] == "true"
        deadline = time.monotonic() + 30
        while _rows(postgres18, "select status from holdfast.delivery") != [("delivered",), ("delivered",)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert _rows(postgres18, "select email, orders from customers") == [("ada@example.com", 1)]
        overview = client.get("/ops/")
    assert (overview.status_code, "guest" in overview.text) == (200, True)
    postgres18.drop_database("tutorial")


def _rows(server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    return server.execute(statement, database="tutorial")
