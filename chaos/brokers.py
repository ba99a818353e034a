"""The brokers of the lab, and the lab's own producers: records with numbered items, each put once."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
import redis

from chaos.journal import ACCEPTED, ATTEMPTED, HOLD, Journal
from tests.brokers.contract import Broker
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.nats_broker import NatsBroker
from tests.brokers.rabbitmq_broker import RabbitBroker
from tests.brokers.redis_broker import RedisBroker
from tests.servers.kafka import KafkaCluster
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import RedisServer
from tests.servers.server import Server

_PORTION = 3
_SECONDS = 0.4


class LabBroker:
    """One broker with the stream of its load, and the ways to break it."""

    def __init__(self, name: str, broker: Broker, server: Server | None, cluster: KafkaCluster | None = None) -> None:
        self.name, self.broker = name, broker
        self._server, self._cluster = server, cluster

    @property
    def environment(self) -> dict[str, str]:
        return {**self.broker.environment, f"CHAOS_SOURCE_{self.name.upper()}": self.broker.source}

    def prepare(self) -> None:
        self.broker.prepare(f"chaos-{self.name}", [f"{self.name}_{kind}" for kind in ("stored", "direct")])

    def pause(self) -> None:
        """Connections stay open, and nothing is answered."""
        if self._server is not None:
            self._server.pause()
        if self._cluster is not None:
            self._cluster.stall(3.0)

    def resume(self) -> None:
        if self._server is not None:
            self._server.resume()
        if self._cluster is not None:
            self._cluster.stall(0.0)

    def produce(self, journal: Journal, closing: threading.Event) -> None:
        """Puts records while a window is open. One whose confirmation failed is in doubt, and is not repeated."""
        numbers = itertools.count()
        while not closing.wait(_SECONDS):
            window = journal.window
            if window == HOLD:
                journal.mark_idle(self.name)
                continue
            items = [f"{window}.{self.name}.{next(numbers)}" for _ in range(_PORTION)]
            for item in items:
                journal.write(ATTEMPTED, self.name, item)
            try:
                self.broker.put(f"chaos-{self.name}", [orjson.dumps({"item": item}) for item in items])
            except Exception:  # noqa: BLE001
                # Each broker has its own errors; all of them leave the records in doubt.
                time.sleep(_SECONDS)
                continue
            for item in items:
                journal.write(ACCEPTED, self.name, item)


class RelayTarget:
    """The Redis stream that the relay writes to."""

    def __init__(self, server: RedisServer) -> None:
        self._client: Any = redis.Redis.from_url(server.url, socket_timeout=3)

    def items(self) -> list[str]:
        entries = self._client.xrange("chaos-relay")
        return [orjson.loads(fields[b"body"])["data"]["item"] for _, fields in entries]

    def close(self) -> None:
        self._client.close()


def start_brokers(
    loads: tuple[str, ...], stack: ExitStack
) -> tuple[list[LabBroker], RelayTarget | None, dict[str, str]]:
    """The brokers that these loads need, the target of the relay, and for each missing broker the reason."""
    brokers: list[LabBroker] = []
    missing: dict[str, str] = {}
    relay: RelayTarget | None = None
    if "redis" in loads or "relay" in loads:
        server = stack.enter_context(RedisServer(durable=True))
        if "relay" in loads:
            relay = RelayTarget(server)
            stack.callback(relay.close)
        brokers.append(LabBroker("redis", RedisBroker(server), server))
    starts: dict[str, Callable[[], LabBroker]] = {
        "nats": lambda: _nats(stack),
        "rabbitmq": lambda: _rabbitmq(stack),
        "kafka": lambda: _kafka(stack),
    }
    for name, start in starts.items():
        if name in loads:
            try:
                brokers.append(start())
            except pytest.skip.Exception as reason:
                missing[name] = str(reason)
    for broker in brokers:
        broker.prepare()
    return brokers, relay, missing


def _nats(stack: ExitStack) -> LabBroker:
    server = stack.enter_context(NatsServer())
    return LabBroker("nats", NatsBroker([server]), server)


def _rabbitmq(stack: ExitStack) -> LabBroker:
    server = stack.enter_context(RabbitMQ())
    return LabBroker("rabbitmq", RabbitBroker(server), server)


def _kafka(stack: ExitStack) -> LabBroker:
    cluster = stack.enter_context(KafkaCluster())
    return LabBroker("kafka", KafkaBroker(cluster), None, cluster)
