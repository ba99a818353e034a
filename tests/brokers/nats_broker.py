"""NATS as a broker under test: one server, or a cluster of three whose leader is killed."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from holdfast.brokers.nats import NatsStream, stream
from tests.servers.nats import NatsServer

T = TypeVar("T")

_SECONDS = 60.0


def make_source(name: str, group: str) -> NatsStream:
    """A stream whose records are handed to others after two seconds."""
    return stream(name, group=group, ack_timeout="2s", servers=os.environ["HOLDFAST_NATS"])


class NatsBroker:
    """Streams on disk, with as many replicas as there are servers."""

    source = "tests.brokers.nats_broker:make_source"

    def __init__(self, nodes: Sequence[NatsServer]) -> None:
        self.nodes = nodes
        self._streams: list[str] = []

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOLDFAST_NATS": ",".join(node.url for node in self.nodes)}

    def prepare(self, stream: str, groups: Sequence[str]) -> None:
        async def make(jetstream: JetStreamContext) -> None:
            await jetstream.add_stream(name=stream, subjects=[stream], num_replicas=len(self.nodes))

        self._do(make)
        self._streams.append(stream)

    def put(self, stream: str, bodies: Sequence[bytes]) -> None:
        async def put(jetstream: JetStreamContext) -> None:
            # Its id lets the server drop what is sent once more because the answer did not come.
            await asyncio.gather(
                *(jetstream.publish(stream, body, headers={"Nats-Msg-Id": body.decode()}) for body in bodies)
            )

        self._do(put)

    def unsettled(self, stream: str, group: str) -> int:
        async def count(jetstream: JetStreamContext) -> int:
            try:
                found = await jetstream.consumer_info(stream, group)
            except NotFoundError:
                return (await jetstream.stream_info(stream)).state.messages
            return int(found.num_pending) + int(found.num_ack_pending)

        return self._do(count)

    def restart(self) -> None:
        """The node that leads the newest stream; it comes back when another leads."""

        async def leader(jetstream: JetStreamContext) -> str | None:
            cluster = (await jetstream.stream_info(self._streams[-1])).cluster
            return self.nodes[0].name if cluster is None else cluster.leader

        name = self._do(leader)
        (node,) = (node for node in self.nodes if node.name == name)
        node.kill()
        while len(self.nodes) > 1 and self._do(leader) in (name, None):
            pass
        node.start()

    def _do(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """Retries until it succeeds: a cluster without a leader does not answer for a moment."""

        async def quiet(error: Exception) -> None:
            pass

        async def attempt() -> T:
            options: dict[str, Any] = {"error_cb": quiet, "reconnect_time_wait": 0.1, "connect_timeout": 2}
            connection = await nats.connect([node.url for node in self.nodes], **options)
            try:
                return await work(connection.jetstream(timeout=2))
            finally:
                await connection.close()

        async def insist() -> T:
            async with asyncio.timeout(_SECONDS):
                while True:
                    try:
                        return await attempt()
                    except (nats.errors.Error, OSError):
                        await asyncio.sleep(0.1)

        return asyncio.run(insist())
