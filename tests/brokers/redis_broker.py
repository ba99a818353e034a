"""Redis as a broker under test."""

import os
from collections.abc import Mapping, Sequence

import redis

from holdfast.brokers.redis import RedisStream, stream
from tests.servers.redis import RedisServer


def make_source(name: str, group: str) -> RedisStream:
    """A stream whose records are taken over after a second."""
    return stream(name, group=group, ack_timeout="1s", url=os.environ.get("HOLDFAST_REDIS"))


class RedisBroker:
    """A server that writes everything to disk before it answers."""

    source = "tests.brokers.redis_broker:make_source"

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client = redis.Redis.from_url(server.url)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOLDFAST_REDIS": self.server.url}

    def prepare(self, stream: str, groups: Sequence[str]) -> None:
        """Nothing: the consumers make their groups."""

    def put(self, stream: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.client.xadd(stream, {"body": body})

    def unsettled(self, stream: str, group: str) -> int:
        found = {one["name"].decode(): one for one in self.client.xinfo_groups(stream)}
        if group not in found:
            return self.client.xlen(stream)
        last = found[group]["last-delivered-id"].decode()
        return int(found[group]["pending"]) + len(self.client.xrange(stream, f"({last}") or ())

    def restart(self) -> None:
        self.server.kill()
        self.server.start()
