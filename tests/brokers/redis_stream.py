"""A Redis server for the tests of a module, with a new stream for each test."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from holdfast.brokers.redis import RedisStream
from holdfast.brokers.redis import stream as redis_stream
from tests.servers.redis import RedisServer

_numbers = count(1)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer(durable=True) as server:
        yield server


@pytest.fixture
def stream(redis_server: RedisServer) -> Iterator["Stream"]:
    """A stream that no other test uses."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield Stream(client, redis_server.url, f"payments-{next(_numbers)}")


class Stream:
    """A stream, accessed with the redis client."""

    def __init__(self, client: "redis.Redis", url: str, name: str) -> None:
        self.client: Any = client
        self.url, self.name = url, name

    def source(self, group: str = "shop", **options: Any) -> RedisStream:
        return redis_stream(self.name, group=group, url=self.url, **{"ack_timeout": "1s"} | options)

    def put(self, body: object, *, id: str = "*", **headers: str) -> str:
        """Adds a record; anything but bytes is written as JSON."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        added: bytes = self.client.xadd(self.name, {"body": text, **headers}, id=id)
        return added.decode()

    def put_event(self, id: str, data: object, *, type: str = "payment.settled", **extensions: str) -> str:
        """Adds a CloudEvent."""
        event = {"specversion": "1.0", "id": id, "source": "/bank", "type": type, "data": data, **extensions}
        return self.put(event, **{"content-type": "application/cloudevents+json"})

    def pending(self, group: str = "shop") -> int:
        """How many records were delivered and not acknowledged."""
        return int(self._group(group).get("pending", 0))

    def left(self, group: str = "shop") -> int:
        """How many records were not delivered yet."""
        last = self._group(group).get("last-delivered-id", b"0").decode()
        return len(self.client.xrange(self.name, f"({last}"))

    def _group(self, group: str) -> dict[str, Any]:
        found = self.client.xinfo_groups(self.name) if self.client.exists(self.name) else []
        return next((one for one in found if one["name"].decode() == group), {})
