"""The how-to pages about brokers and relays run as they are printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.brokers.redis_stream import redis_server
from tests.servers.redis import RedisServer

__all__ = ["redis_server"]

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def _run(folder: Path, *words: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def _programs(page: str) -> list[list[str]]:
    """The words after `python` of the commands that are short programs."""
    return [shlex.split(line)[1:] for line in re.findall(r"^\$ (python -c .*)$", page, re.MULTILINE)]


def test_the_first_example_runs_as_printed(redis_server: RedisServer, tmp_path: Path) -> None:
    import redis

    page = (HOW_TO / "brokers.md").read_text()
    (tmp_path / "till.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    (add,) = _programs(page)
    _run(tmp_path, *add, HOLDFAST_REDIS=redis_server.url)
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        [(added, _)] = client.xrange("payments")
    printed = _run(tmp_path, "till.py", HOLDFAST_REDIS=redis_server.url)
    assert f"order 7 is paid (redis:payments, {added})" in printed


def test_the_first_relay_runs_as_printed_and_its_event_is_in_the_stream(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    page = (HOW_TO / "relay.md").read_text().replace("redis://localhost:6379/0", redis_server.url)
    ((name, program),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    (tmp_path / name).write_text(program)
    assert f"$ python {name}\n" in page
    _run(tmp_path, name)
    (show,) = _programs(page)
    printed = _run(tmp_path, *show)
    assert '"type":"order.placed"' in printed.replace(" ", "")
    assert '"order_id":7' in printed.replace(" ", "")
