"""The how-to about brokers runs as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.brokers.redis_stream import redis_server
from tests.servers.redis import RedisServer

__all__ = ["redis_server"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "brokers.md"


def test_the_first_example_runs_as_printed(redis_server: RedisServer, tmp_path: Path) -> None:
    import redis

    (tmp_path / "till.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    with redis.Redis.from_url(redis_server.url) as client:
        added = client.xadd("payments", {"body": '{"order_id": 7, "amount": 12}'})
    assert isinstance(added, bytes)
    ended = subprocess.run(
        [sys.executable, "till.py"],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_REDIS": redis_server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"order 7 is paid (redis:payments, {added.decode()})" in ended.stdout
