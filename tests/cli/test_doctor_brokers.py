"""`holdfast doctor --app`: the brokers that an app declares are asked as well."""

import asyncio
import json
from pathlib import Path

import nats
import pytest

from tests.cli.conftest import Shop
from tests.servers.nats import NatsServer

APP = """
from holdfast import Holdfast
from holdfast.brokers import nats, redis

hf = Holdfast({dsn!r})


@hf.consumer("payment.settled", name="till", source=nats.stream("PAY", group="till", servers={url!r}))
async def till(event): ...


hf.relay("order.*", name="out", to=redis.stream("orders", url="redis://:hunter2@127.0.0.1:1/0"))
"""


def test_the_doctor_names_settings_that_lose_records_and_brokers_that_do_not_answer(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(url: str) -> None:
        connection = await nats.connect(url)
        await connection.jetstream().add_stream(name="PAY", subjects=["pay.>"], storage="memory", max_age=60)
        await connection.close()

    monkeypatch.chdir(tmp_path)
    with NatsServer() as server:
        asyncio.run(make(server.url))
        (tmp_path / "brokered.py").write_text(APP.format(dsn=shop.dsn, url=server.url))
        result = shop.run("doctor", "--app", "brokered.py:hf", "--format", "json")
    assert result.exit_code == 1
    found = [
        (one["level"], one["message"], one["remedy"]) for one in json.loads(result.stdout) if one["check"] == "brokers"
    ]
    assert [level for level, _, _ in found] == ["fail", "warn", "warn"]
    assert found[0][1].startswith("redis:orders cannot be reached")
    assert "hunter2" not in result.output
    assert found[1] == (
        "warn",
        "nats:PAY/till: stream PAY is stored in memory, and a restart loses it",
        "create it again with storage=file",
    )
    assert "after 1m" in found[2][1]
    # Without --app nothing of the user's is imported, and no broker is asked.
    without = shop.run("doctor", "--format", "json", env={"HOLDFAST_APP": None})
    assert "brokers" not in {one["check"] for one in json.loads(without.stdout)}
