"""Records of a broker become events of the store: once for each key, for every consumer, projector and relay."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson
import pytest

from holdfast import Context, Holdfast, Router, event, upcast
from holdfast.brokers import kafka, redis
from holdfast.brokers.decoder import RecordDecoder, record_of
from holdfast.brokers.ingestion import EventRule
from holdfast.brokers.protocol import Record
from holdfast.core.errors import ConfigurationError, UnreadableRecord
from holdfast.core.events.event import event_type
from holdfast.core.flow import By, key_rule
from holdfast.core.message import RAW_TYPE, Address
from holdfast.core.telemetry.correlation import correlation
from holdfast.stores.queries.query import Filter, messages
from tests.brokers.redis_stream import Stream, redis_server, stream
from tests.support.apps import MakeApp
from tests.support.worker import drain

__all__ = ["redis_server", "stream"]

TYPE = "order.placed"
OWN = {"source_message_id": "7", "source_stream": "orders", "source_partition": "2", "source_offset": "5"}


@event(TYPE, version=2)
@dataclass
class OrderPlaced:
    order_id: int
    dedupe_key: str = "none"


@upcast(OrderPlaced, from_version=1)
def _renamed(old: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": old["number"]}


class App:
    """An app that ingests a stream, and notes what its consumer, projector and reaction get."""

    def __init__(self, hf: Holdfast, stream: Stream, key: By) -> None:
        self.hf, self.inherited = hf, list[dict[str, str]]()
        self.got: dict[str, list[int]] = {"mail": [], "totals": [], "reaction": []}
        hf.ingest(stream.source(), as_=OrderPlaced, key=key, name="orders-in")

        @hf.consumer(OrderPlaced, name="mail")
        async def mail(order: OrderPlaced) -> None:
            self.inherited.append(dict(correlation()))
            self.got["mail"].append(order.order_id)

        @hf.projector(OrderPlaced, name="totals", reset=lambda conn: self.got["totals"].clear())
        async def totals(ctx: Context, order: OrderPlaced) -> None:
            self.got["totals"].append(order.order_id)

        @hf.reaction(OrderPlaced)
        async def react(order: OrderPlaced) -> None:
            self.got["reaction"].append(order.order_id)

    def seen(self) -> dict[str, list[int]]:
        return {name: sorted(ids) for name, ids in self.got.items()}


async def test_each_key_is_one_event_for_everyone_and_bad_records_are_dead_letters(
    make_app: MakeApp, stream: Stream
) -> None:
    app = App(hf := make_app(), stream, "dedupe_key")
    out = f"{stream.name}-out"
    hf.relay("order.*", to=redis.stream(out, url=stream.url), name="out")
    first = stream.put({"order_id": 7, "dedupe_key": "k-7"}, request_id="r-7", tenant="forged")
    stream.put({"dedupe_key": "k-7", "order_id": 7})
    stream.put({"number": 8, "dedupe_key": "k-8"}, event_version="1")
    bad = [
        stream.put({"order_id": 1, "dedupe_key": "k-7"}),
        stream.put({"order_id": 2}),
        stream.put({"order_id": "three", "dedupe_key": "k-3"}),
    ]
    await drain(hf)
    assert app.seen() == {"mail": [7, 8], "totals": [7, 8], "reaction": [7, 8]}
    assert stream.pending() == stream.left() == 0
    stored = {one.key: one for one in await hf.store.run(messages(type=TYPE, limit=9))}
    assert (set(stored), (one := stored["k-7"]).source) == ({"k-7", "k-8"}, f"redis:{stream.name}")
    own = {"source_message_id": first, "source_stream": stream.name}
    assert one.headers == own | {"request_id": "r-7", "event_version": "2"}
    assert all(not own.keys() & found.keys() for found in app.inherited)
    sent = [orjson.loads(fields[b"body"]) for _, fields in stream.client.xrange(out)]
    assert {(found["subject"], found["sourcestream"]) for found in sent} == {("k-7", stream.name), ("k-8", stream.name)}
    reading = {one.name: one.reads_from for one in await hf.ops.consumers() if one.reads_from is not None}
    assert reading == {"orders-in": f"redis:{stream.name}/shop"}
    # The others are dead letters of the ingest, with the place of their records.
    dead = [await hf.ops.delivery(found.delivery.id) for found in await hf.ops.deliveries(Filter(dead=True))]
    assert {(found.listed.type, found.listed.delivery.consumer) for found in dead} == {(RAW_TYPE, "orders-in")}
    errors = {
        found.message.headers["source_message_id"]: found.listed.delivery.last_error or ""
        for found in dead
        if found.message is not None
    }
    expected = ("belongs to an event with other content", "has no key", "$.order_id")
    assert [text for text, id in zip(expected, bad, strict=True) if text not in errors[id]] == []
    # With a rule that gives them a key, a replay stores their events for everyone; a rebuild reads them all.
    fixed = App(make_app(), stream, lambda order: f"order:{order['order_id']}")
    await fixed.hf.ops.replay([found.listed.delivery.id for found in dead], actor="ada", reason="the key is fixed")
    await drain(fixed.hf)
    assert fixed.seen() == {"mail": [1, 2], "totals": [1, 2], "reaction": [1, 2]}
    assert len(await fixed.hf.ops.deliveries(Filter(dead=True))) == 1
    await fixed.hf.projectors.rebuild("totals", actor="ada")
    assert fixed.seen()["totals"] == [1, 2, 7, 8]


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_a_pause_stops_fetching(make_app: MakeApp, stream: Stream) -> None:
    app = App(make_app(), stream, "order_id")
    stream.put({"order_id": 1})
    await drain(app.hf)
    await app.hf.ops.pause_consumer("orders-in", actor="ada", reason="test")
    stream.put({"order_id": 2})
    await drain(app.hf)
    assert (stream.left(), app.got["mail"]) == (1, [1])


def decoder(key: By | None = None, *, trusts: bool = False) -> RecordDecoder:
    rule = None if key is None else key_rule("key", key)
    return RecordDecoder(
        origin="kafka",
        patterns=(TYPE,),
        address=Address(consumer="orders-in"),
        generation=3,
        max_bytes=1000,
        fresh=lambda: UUID(int=1),
        events=EventRule(key=rule, event=event_type(OrderPlaced), trusts_headers=trusts),
    )


def record(body: object, **headers: str) -> Record:
    return Record(stream="orders", id="7", body=orjson.dumps(body), headers=headers, key="c-1", partition=2, offset=5)


def cloud_event(**extensions: str) -> Record:
    data = {"order_id": 1}
    fields = {"specversion": "1.0", "id": "e-1", "source": "/bank", "type": TYPE, "data": data, "event_version": "2"}
    return record(fields | extensions, **{"content-type": "application/cloudevents+json"})


@pytest.mark.parametrize(
    ("key", "given", "expected", "also"),
    [
        (None, record({"order_id": 1}), "7", {}),
        ("order_id", record({"order_id": 1}), "1", {}),
        ("header:Dedupe-Key", record({"order_id": 1}, dedupe_key="d-1"), "d-1", {}),
        ("header:key", record({"order_id": 1}), "c-1", {}),
        (lambda order: order["order_id"] + 1, record({"order_id": 1}), "2", {}),
        (None, cloud_event(requestid="r-1"), "/bank#e-1", {"request_id": "r-1"}),
        ("header:dedupe-key", cloud_event(dedupekey="d-1"), "d-1", {"source_event_id": "/bank#e-1"}),
    ],
)
def test_a_key_comes_from_the_payload_a_header_or_a_function(
    key: By | None, given: Record, expected: str, also: dict[str, str]
) -> None:
    message = decoder(key).message(given)
    assert message is not None
    assert (message.key, message.addressed) == (expected, ())
    assert message.headers == OWN | also | {"event_version": "2"}
    # A raw record that is replayed has the same place.
    raw = decoder(key).raw(given)
    assert (raw.headers.items() >= OWN.items(), [one.consumer for one in raw.addressed]) == (True, ["orders-in"])
    assert decoder(key).message(record_of(orjson.loads(raw.payload))) == message


def test_headers_are_kept_only_if_the_producers_are_trusted() -> None:
    given = record({"order_id": 1}, user_id="u-1", tenant="acme", source_stream="forged", traceparent="t-1")
    kept = [decoder(trusts=trusts).message(given) for trusts in (False, True)]
    common = OWN | {"traceparent": "t-1", "event_version": "2"}
    assert [one and one.headers for one in kept] == [common, common | {"user_id": "u-1", "tenant": "acme"}]


@pytest.mark.parametrize(
    ("key", "given", "problem"),
    [
        ("dedupe_key", record({"order_id": 1}), "dedupe_key is missing or empty"),
        ("dedupe_key", record({"order_id": 1, "dedupe_key": ""}), "is missing or empty"),
        ("a.b", record({"order_id": 1, "a": {"b": [1]}}), "is of type list"),
        ("order_id", record({"order_id": True}), "is of type bool"),
        ("header:dedupe-key", record({"order_id": 1}), "header:dedupe-key is missing"),
        (lambda order: order["id"], record({"order_id": 1}), "raised KeyError"),
        ("order_id", record({"order_id": "x" * 501}), "501 characters"),
        (None, record({"order_id": "one"}), r"\$.order_id"),
        (None, record({"number": "one"}, event_version="1"), r"\$.order_id"),
        (None, record({"order_id": 1}, event_version="x"), "is not a number"),
    ],
)
def test_a_record_without_a_key_or_of_the_wrong_shape_is_unreadable(
    key: By | None, given: Record, problem: str
) -> None:
    with pytest.raises(UnreadableRecord, match=problem):
        decoder(key).message(given)


def test_a_newer_version_is_stored_for_newer_workers() -> None:
    message = decoder().message(record({"anything": 1}, event_version="3"))
    assert message is not None
    assert message.headers["event_version"] == "3"
    assert decoder().message(replace(cloud_event(), body=cloud_event().body.replace(b"placed", b"lost"))) is None


def test_wrong_declarations_are_refused_with_the_remedy() -> None:
    source = redis.stream("orders", group="shop")

    def refused(declare: Callable[[Holdfast], object], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            declare(Holdfast("sqlite:///unused.db", redact=["card"]))

    refused(lambda hf: hf.ingest(redis.stream("orders"), as_=OrderPlaced), "has no group=")
    refused(lambda hf: hf.ingest("orders", as_=OrderPlaced), "give a broker's topic")  # type: ignore[arg-type]
    refused(lambda hf: hf.ingest(source, as_=int), "not an event class")
    refused(lambda hf: hf.ingest(source, as_=OrderPlaced, key="orderid"), "did you mean 'order_id'")
    refused(lambda hf: hf.ingest(source, as_=OrderPlaced, key="a b"), "payload path")
    refused(lambda hf: hf.ingest(source, as_=OrderPlaced, key=7), "payload path")  # type: ignore[arg-type]
    refused(lambda hf: hf.ingest(source, as_=TYPE, key="card"), "redacted")
    refused(lambda hf: hf.ingest(source, as_=OrderPlaced, key="header:authorization"), "secret header")
    refused(lambda hf: hf.ingest(source, as_=OrderPlaced, trust_identity=1), "True or False")  # type: ignore[arg-type]

    def loop(hf: Holdfast) -> None:
        hf.relay("order.*", to=redis.stream("orders"), name="out")
        router = Router()
        router.ingest(source, as_=OrderPlaced)
        hf.include(router)

    refused(loop, "would come back")
    bridge = Holdfast("sqlite:///unused.db")
    bridge.relay("order.*", to=kafka.topic("orders", servers="b:9092"), name="out")
    bridge.ingest(kafka.topic("orders", group="shop", servers="a:9092"), as_=OrderPlaced, key="$.order_id")
    assert list(bridge.broker_sources) == ["ingest-kafka-orders-shop"]
