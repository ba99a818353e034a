"""Brokers: records taken in, and events relayed, compared with a bare loop of the same client with the same guarantee."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import psycopg

from bench.brokers import BATCH, Broker, Kafka, Nats, Rabbit, Redis
from bench.child import Failed
from bench.measure import Measurement
from bench.peers.holdfast import new_loop
from bench.plan import Run
from bench.rounds import interleaved
from bench.subject import BOUND, OURS, Kind, Subject
from holdfast import Holdfast, WorkerOptions
from holdfast.runtime.brokers.relays import Relays
from holdfast.runtime.brokers.streams import BrokerStreams
from tests.servers.kafka import KafkaCluster
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import RedisServer

SUITE = "brokers"
NAMES = ("redis", "nats", "rabbitmq", "kafka")
_PATIENCE = 300.0
_LOOK = 0.02


def brokers_suite(run: Run) -> None:
    """Consume: fetched, committed, acknowledged. Relay: read, sent, confirmed, marked. One process, PostgreSQL."""
    count, numbers = run.sizes.records, itertools.count(1)
    with contextlib.ExitStack() as stack:
        servers: dict[str, Broker] = {}

        def measure(subject: Subject, turn: int) -> Iterator[Measurement]:
            if subject.variant not in servers:
                servers[subject.variant] = _start(subject.variant, stack)
            broker = servers[subject.variant]
            for metric in ("consume", "relay"):
                stream = f"{metric}{next(numbers)}"
                with run.stores.fresh(Kind.POSTGRES) as where, asyncio.Runner(loop_factory=new_loop) as loop:
                    work = _WORK[metric, subject.peer](broker, stream, where, count, run.stores.settle)
                    seconds = loop.run(asyncio.wait_for(work, _PATIENCE))
                yield Measurement(SUITE, subject.name, metric, count / seconds, "/s", turn, count=count)

        pairs = [Subject(peer, name, Kind.POSTGRES, None) for name in NAMES for peer in (OURS, BOUND)]
        interleaved(run, SUITE, pairs, measure)


def _start(name: str, stack: contextlib.ExitStack) -> Broker:
    try:
        match name:
            case "redis":
                return Redis(stack.enter_context(RedisServer(durable=True)).url)
            case "nats":
                return Nats(stack.enter_context(NatsServer()).url)
            case "rabbitmq":
                return Rabbit(stack.enter_context(RabbitMQ()).url)
            case _:
                cluster = stack.enter_context(KafkaCluster())
                return Kafka(cluster.servers, cluster.create)
    except BaseException as error:
        # The tests' server skips its test where it is not installed.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Failed(f"{name} did not start: {error}") from error


def _bodies(count: int) -> list[bytes]:
    return [orjson.dumps({"id": n, "pad": "x" * 80}) for n in range(count)]


async def _fill(broker: Broker, stream: str, count: int) -> None:
    await broker.prepare(stream)
    async with broker.bare_sender(stream) as send:
        for batch in _batches(_bodies(count)):
            await send(batch)


async def _consume_bare(broker: Broker, stream: str, where: str, count: int, settle: Any) -> float:
    await _fill(broker, stream, count)
    async with await psycopg.AsyncConnection.connect(where) as conn:
        await conn.execute("create table inbox (id bigint primary key, body jsonb not null)")
        await conn.commit()
        settle()

        async def insert(bodies: Sequence[bytes]) -> None:
            rows = [(orjson.loads(body)["id"], body.decode()) for body in bodies]
            ids, texts = zip(*rows, strict=True)
            await conn.execute(
                "insert into inbox select * from unnest(%s::bigint[], %s::jsonb[]) on conflict do nothing",
                (list(ids), list(texts)),
            )
            await conn.commit()

        began = time.perf_counter()
        await broker.bare_consume(stream, count, insert)
        seconds = time.perf_counter() - began
        await _expect(conn, "select count(*) from inbox", count)
    return seconds


async def _consume_ours(broker: Broker, stream: str, where: str, count: int, settle: Any) -> float:
    await _fill(broker, stream, count)
    app = Holdfast(where)
    app.consumer("bench.happened", name="bench", source=broker.place(stream, reads=True))(_nothing)
    await _ready(app)
    settle()
    stop = asyncio.Event()
    streams = BrokerStreams(app._runtime, WorkerOptions())
    async with await psycopg.AsyncConnection.connect(where, autocommit=True) as conn:
        began = time.perf_counter()
        streams.start(stop, stop.set)
        # All of them are committed; the last acknowledgements are a moment behind.
        while not stop.is_set() and await _one(conn, "select count(*) from holdfast.delivery") < count:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        seconds = time.perf_counter() - began
        stop.set()
        await streams.end(asyncio.Event())
        streams.check()
        await _expect(conn, "select count(*) from holdfast.delivery", count)
    await app.close()
    return seconds


async def _relay_bare(broker: Broker, stream: str, where: str, count: int, settle: Any) -> float:
    await broker.prepare(stream)
    async with await psycopg.AsyncConnection.connect(where) as conn:
        await conn.execute("create table outbox (position bigint primary key, body text not null)")
        await conn.execute("create table reached (position bigint not null)")
        await conn.execute("insert into reached values (-1)")
        texts = [body.decode() for body in _bodies(count)]
        await conn.execute(
            "insert into outbox select * from unnest(%s::bigint[], %s::text[])", (list(range(count)), texts)
        )
        await conn.commit()
        settle()
        async with broker.bare_sender(stream) as send:
            began = time.perf_counter()
            while True:
                cursor = await conn.execute(
                    "select o.position, o.body from outbox o, reached r where o.position > r.position "
                    f"order by o.position limit {BATCH}"
                )
                rows = await cursor.fetchall()
                if not rows:
                    break
                await send([body.encode() for _, body in rows])
                await conn.execute("update reached set position = %s", (rows[-1][0],))
                await conn.commit()
            seconds = time.perf_counter() - began
        await _expect(conn, "select position + 1 from reached", count)
    return seconds


async def _relay_ours(broker: Broker, stream: str, where: str, count: int, settle: Any) -> float:
    await broker.prepare(stream)
    app = Holdfast(where)
    app.relay("bench.*", name="out", to=broker.place(stream, reads=False))
    await _ready(app)
    for batch in _batches(list(range(count))):
        await app.publish_many([("bench.happened", {"id": n, "pad": "x" * 80}) for n in batch], conn=None)
    settle()
    relays = Relays(app._runtime, WorkerOptions())
    began = time.perf_counter()
    relays.start()
    await relays.caught_up(None)
    seconds = time.perf_counter() - began
    await relays.stop()
    behind = [(relay.waiting, relay.rewound) for relay in (await app.ops.stats()).relays]
    if behind != [(0, False)]:
        raise Failed(f"the relay was not done: {behind}")
    await app.close()
    return seconds


_WORK = {
    ("consume", OURS): _consume_ours,
    ("consume", BOUND): _consume_bare,
    ("relay", OURS): _relay_ours,
    ("relay", BOUND): _relay_bare,
}


async def _ready(app: Holdfast) -> None:
    app.store.migrate()
    await app.publish_many([], conn=None)


async def _nothing(payload: dict[str, Any]) -> None:
    pass


def _batches(rows: list[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(rows), BATCH):
        yield rows[at : at + BATCH]


async def _one(conn: Any, question: str) -> int:
    row = await (await conn.execute(question)).fetchone()
    return int(row[0])


async def _expect(conn: Any, question: str, count: int) -> None:
    if (found := await _one(conn, question)) != count:
        raise Failed(f"{found} of {count} were there")
