"""The how-to's programs, as printed: the same request twice makes one order."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.servers.process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "idempotency.md"
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
COMMANDS = re.findall(r"Run it with `([^`]+)`", PAGE.read_text())


def test_every_program_is_printed_with_the_command_that_runs_it() -> None:
    assert list(PROGRAMS) == ["fastapi_shop.py", "starlette_shop.py", "flask_shop.py", "django_shop.py"]
    assert all(Path(name).stem in command for name, command in zip(PROGRAMS, COMMANDS, strict=True))


@pytest.mark.parametrize(("name", "command"), list(zip(PROGRAMS, COMMANDS, strict=True)), ids=PROGRAMS)
def test_the_program_runs_as_printed(name: str, command: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROGRAMS[name])
    port = free_port()
    words = [word.replace("8000", str(port)) for word in command.split()]
    words = [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", *words]
    if "uvicorn" in words:
        words += ["--port", str(port)]
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(words, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    try:
        check(f"http://127.0.0.1:{port}", tmp_path / "shop.db", server, log)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)


def check(url: str, path: Path, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60

    def order(key: str | None = "8e03978e", who: str = "ada", item: str = "tea") -> httpx2.Response:
        headers = {"Authorization": f"Bearer {who}-secret", **({} if key is None else {"Idempotency-Key": key})}
        while True:
            try:
                return httpx2.post(f"{url}/orders", json={"item": item}, headers=headers, timeout=20)
            except httpx2.ConnectError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)

    first, again = order(), order('"8e03978e"')
    assert first.status_code == 201, log.read_text()
    assert first.json() == again.json() == {"id": 1, "item": "tea"}
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert order(item="coffee").status_code == 409
    assert order(None).status_code == 400
    assert order(who="eve").status_code == 400
    assert order(who="bob").json() == {"id": 2, "item": "tea"}
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("select count(*) from orders").fetchone() == (2,)
