"""The files and commands of the tutorial, as printed, and that the commands print what the page shows below them."""

import re
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from holdfast.interfaces.cli import main
from tests.servers.postgres import PostgresServer

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
SCRIPT, _, SERVICE = PAGE.partition("\n## 5. ")
BLOCK = re.compile(r"```(?:(?:python|ini)\n# (\w+\.\w+)\n(.*?)|console\n(.*?))```", re.DOTALL)
HEADERS = {"Authorization": "Bearer ada-secret", "Idempotency-Key": "order-1"}
VARIABLE = (
    (r" \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\)", ""),  # not on a terminal
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "ID"),
    (r"\b[0-9a-f]{16}\b", "GROUP"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"\b\d+s ago|just now", "AGO"),
    (r"oldest \d+s", "oldest 0s"),
    (r"=+ (.*) in [\d.]+s =+", r"\1"),
    (r"is at version \d+", "is at version N"),
)
"""What differs between two runs of a command, with what is compared instead."""


class Step(NamedTuple):
    """A file to write, or a command with the lines that the page shows below it."""

    file: str
    program: str
    command: str
    shown: list[str]


def _steps(page: str) -> Iterator[Step]:
    for file, program, block in BLOCK.findall(page):
        if file:
            yield Step(file, program, "", [])
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield Step("", "", command, shown)


def _comparable(line: str) -> str:
    for pattern, replacement in VARIABLE:
        line = re.sub(pattern, replacement, line)
    return " ".join(line.split())


def _missing(shown: list[str], printed: str) -> list[str]:
    """The lines of the page that a command did not print."""
    lines = {_comparable(line) for line in printed.splitlines()}
    return [line for line in shown if line != "…" and _comparable(line) not in lines]


def _write_files(names: set[str]) -> None:
    """The last version of each file of the script."""
    for step in _steps(SCRIPT):
        if step.file in names:
            Path(step.file).write_text(step.program)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "shop"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.setenv("HOLDFAST_APP", "shop:hf")
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    return made


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_the_steps_on_sqlite_print_what_the_tutorial_shows() -> None:
    printed = []
    for step in _steps(SCRIPT):
        if step.file:
            Path(step.file).write_text(step.program)
        else:
            output = _run(step.command)
            assert _missing(step.shown, output) == [], f"{step.command} printed:\n{output}"
            printed.append((step.command, output))
    receipts = [text.strip() for command, text in printed if command == "holdfast worker --until-idle"]
    assert receipts[:3] == ["receipt 1 to ada@example.com", "", "receipt 2 to bob@example.com"]
    assert receipts[3].startswith("receipt 3 to ada@example.com, idempotency key ")
    found = dict(printed)
    assert "mail server is back" in found["holdfast audit list --action replay"]
    assert found["holdfast deliveries list"].count("count_orders") == 3
    assert "1 passed" in found["pytest test_shop.py"]


def _run(command: str) -> str:
    """What a command printed. Installing, exporting and making the environment are left out."""
    program, *words = shlex.split(command)
    if program in ("touch", "rm"):
        getattr(Path(words[0]), "touch" if program == "touch" else "unlink")()
    elif program == "holdfast":
        sys.modules.pop("shop", None)  # as in a new process
        shown = CliRunner().invoke(main, words)
        assert shown.exit_code == 0, shown.output
        return shown.stdout if words[0] == "worker" else shown.output  # the page leaves the log of the worker out
    elif words[:1] == ["shop.py"]:
        runpy.run_path("shop.py")["place_order"](words[1])
    elif program == "pytest":
        ended = _pytest(*words)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout
    return ""


def _pytest(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
@pytest.mark.parametrize("consumer", ["count_orders", "send_receipt"])
@pytest.mark.usefixtures("folder")
def test_the_test_of_the_tutorial_fails_if_a_consumer_fails(consumer: str) -> None:
    _write_files({"shop.py", "pytest.ini", "test_shop.py"})
    start = f"def {consumer}(ctx: Context, order: OrderPlaced) -> None:\n"
    program = Path("shop.py").read_text()
    assert start in program
    Path("shop.py").write_text(program.replace(start, f'{start}    raise ValueError("not today")\n'))
    ended = _pytest("test_shop.py")
    assert ended.returncode == 1, ended.stdout
    assert f'holdfast.statuses("{consumer}") == ["delivered"]' in ended.stdout
    assert "Captured log call" in ended.stdout, "the page says that pytest prints the log of the worker"
    assert f"in {consumer}" in ended.stdout
    assert "ValueError: not today" in ended.stdout
    assert not Path("shop.db").exists(), "the test used the database of the shop"


def test_lines_of_the_page_that_are_not_printed_are_found() -> None:
    printed = "receipt 1 to ada\nGROUP  COUNT\n23e0d750105b5418  1  3s ago\n=== 1 passed in 2.26s ===\n"
    assert _missing(["GROUP COUNT", "0123456789abcdef  1  12s ago", "…", "== 1 passed in 0.51s =="], printed) == []
    assert _missing(["GROUP COUNT", "0123456789abcdef  2  12s ago"], printed) == ["0123456789abcdef  2  12s ago"]
    assert sum(len(step.shown) for step in _steps(PAGE)) > 20


@pytest.mark.long
def test_the_service_places_an_order_once_and_has_a_console(
    postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    steps = {step.command: step.shown for step in _steps(SERVICE)}
    dsn = postgres18.create_database("tutorial")
    monkeypatch.setenv("HOLDFAST_DSN", dsn)
    migrated = CliRunner().invoke(main, ["schema", "migrate"])
    assert migrated.exit_code == 0
    assert _missing(steps["holdfast schema migrate"], migrated.output) == []
    ((_, program),) = re.findall(r"```python\n# (web)\.py\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("web")
    monkeypatch.setitem(sys.modules, "web", module)  # FastAPI reads annotations from there
    exec(compile(program, "web.py", "exec", dont_inherit=True), vars(module))  # noqa: S102
    with TestClient(vars(module)["app"], base_url="http://localhost") as client:
        answers = [client.post("/orders?email=ada@example.com", headers=HEADERS) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
        assert [[answer.text] for answer in answers] == [
            shown for command, shown in steps.items() if command.startswith("curl -X POST")
        ] * 2
        assert answers[1].headers["idempotent-replayed"] == "true"
        deadline = time.monotonic() + 30
        while _rows(postgres18, "select status from holdfast.delivery") != [("delivered",), ("delivered",)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert _rows(postgres18, "select email, orders from customers") == [("ada@example.com", 1)]
        for words in ("stats", "doctor"):
            assert _missing(steps[f"holdfast {words}"], CliRunner().invoke(main, [words]).output) == []
        refused = client.get("/ops/")
        customer = client.get("/ops/", headers={"Authorization": "Bearer bob-secret"})
        overview = client.get("/ops/", headers=HEADERS)
    assert steps["curl --include localhost:8000/ops/"][0] == f"HTTP/1.1 {refused.status_code} Unauthorized"
    assert customer.status_code == 401
    assert "ada@example.com" not in refused.text + customer.text
    assert (overview.status_code, "ada" in overview.text, "guest" in overview.text) == (200, True, False)
    postgres18.drop_database("tutorial")


def _rows(server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    return server.execute(statement, database="tutorial")
