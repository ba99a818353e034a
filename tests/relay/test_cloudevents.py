"""CloudEvents: other libraries parse ours, we decode those of others, and invalid ones are rejected."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
from cloudevents.core.bindings.kafka import (
    KafkaMessage,
    from_binary_event,
    from_kafka_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from holdfast.brokers.cloudevents import KNOWN, Mode, ReceivedEvent, decode, encode
from holdfast.brokers.protocol import OutgoingRecord, Record
from holdfast.core.message import Message

ID = UUID("0192a000-0000-7000-8000-000000000001")
AT = datetime(2024, 2, 29, 12, 30, 15, 250_000, UTC)


def message(**given: Any) -> Message:
    usual: dict[str, Any] = {
        "id": ID,
        "type": "order.placed",
        "source": "shop.eu",
        "key": "order:7:placed:v1",
        "payload": '{"n": 18446744073709551615, "text": "naïve ☃"}',
        "headers": {"request_id": "r-1", "event_version": "2"},
        "generation": 0,
        "occurred_at": AT,
    }
    return Message(**usual | given)


def record(outgoing: OutgoingRecord) -> Record:
    """What a broker hands over of what was sent."""
    return Record(stream="orders", id="1", body=outgoing.body, headers=outgoing.headers, key=outgoing.key)


def structured(**attributes: object) -> Record:
    usual = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.placed"}
    body = orjson.dumps({name: value for name, value in (usual | attributes).items() if value is not ...})
    return Record(stream="s", id="1", body=body, headers={"content-type": "application/cloudevents+json"})


@pytest.mark.parametrize("mode", Mode)
def test_another_library_reads_what_is_written(mode: Mode) -> None:
    sent = encode(message(headers={"request_id": "r-1", "traceparent": "00-ab-cd-01", "X-Weird.Name": "x"}), mode=mode)
    parsed = from_kafka_event(
        KafkaMessage({name: value.encode() for name, value in sent.headers.items()}, sent.key, sent.body)
    )
    assert parsed.get_id() == str(ID)
    assert (parsed.get_source(), parsed.get_type(), parsed.get_time()) == ("shop.eu", "order.placed", AT)
    assert parsed.get_subject() == "order:7:placed:v1"
    assert parsed.get_extension("partitionkey") == "order:7:placed:v1"
    assert parsed.get_extension("requestid") == "r-1"
    assert parsed.get_extension("traceparent") == "00-ab-cd-01"
    assert parsed.get_extension("xweirdname") == "x"
    assert parsed.get_data() == {"n": 18446744073709551615, "text": "naïve ☃"}


def test_what_another_library_writes_is_read() -> None:
    event = CloudEvent(
        {"id": "a-1", "source": "/mall", "type": "order.placed", "time": AT, "requestid": "r-9", "partitionkey": "k"},
        {"n": 1},
    )
    for sent in (to_structured_event(event), to_binary_event(event)):
        assert from_binary_event is not None
        headers = {name: value.decode() for name, value in sent.headers.items()}
        key = sent.key.decode() if isinstance(sent.key, bytes) else sent.key
        found = decode(Record(stream="s", id="9", body=bytes(sent.value), headers=headers, key=key))
        assert found == ReceivedEvent(
            id="a-1",
            source="/mall",
            type="order.placed",
            key="k",
            data={"n": 1},
            headers={"request_id": "r-9"},
            occurred_at=AT,
        )


@pytest.mark.parametrize("mode", Mode)
def test_a_message_is_decoded_unchanged_with_every_known_header(mode: Mode) -> None:
    headers = {name: f"value of {name}" for name in KNOWN} | {"tenant": "acme"}
    found = decode(record(encode(message(headers=headers), mode=mode)))
    assert found == ReceivedEvent(
        id=str(ID),
        source="shop.eu",
        type="order.placed",
        key="order:7:placed:v1",
        data={"n": 18446744073709551615, "text": "naïve ☃"},
        headers=headers,
        occurred_at=AT,
    )


@given(headers=st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=8), mode=st.sampled_from(Mode))
def test_every_header_arrives_under_its_own_name_and_none_takes_an_attributes_place(
    headers: dict[str, str], mode: Mode
) -> None:
    found = decode(record(encode(message(headers=headers), mode=mode)))
    assert found is not None
    assert (found.id, found.type, found.data) == (str(ID), "order.placed", message().data)
    assert found.headers == headers


def test_headers_named_like_attributes_do_not_replace_them() -> None:
    found = decode(record(encode(message(headers={"id": "1", "ID": "2", "partition_key": "3", "data": "4"}))))
    assert found is not None
    assert (found.id, found.key) == (str(ID), "order:7:placed:v1")
    assert found.headers == {"id": "1", "ID": "2", "partition_key": "3", "data": "4"}


@pytest.mark.parametrize("forged", ["no json", "[1]", '{"customid": "user_id", "requestid": 7}'])
def test_names_of_headers_that_do_not_belong_to_them_are_not_taken(forged: str) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/x", "ce_type": "t", "ce_customid": "c"}
    found = decode(Record(stream="s", id="9", body=b"{}", headers={**headers, "ce_holdfastheaders": forged}))
    assert found is not None
    assert found.headers == {"customid": "c"}


def test_an_ordering_key_is_separate_from_the_message_key() -> None:
    sent = encode(message(), key="order-7")
    assert sent.key == "order-7"
    assert orjson.loads(sent.body)["subject"] == "order:7:placed:v1"
    assert encode(message(key=None)).key is None


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"n": 1}', {}),
        (b'{"n": 1}', {"content-type": "application/json"}),
        (b'{"note": "\\"specversion\\" is a word"}', {}),
        (b'["specversion"]', {}),
        (b"\xff\x00", {"content-type": "application/octet-stream"}),
        (b'{"specversion": "1.0"}', {"content-type": "application/json"}),
    ],
)
def test_what_is_no_cloudevent_is_left_to_others(body: bytes, headers: dict[str, str]) -> None:
    assert decode(Record(stream="s", id="1", body=body, headers=headers)) is None


def test_a_document_is_known_by_what_it_says_where_a_broker_has_no_headers() -> None:
    found = decode(Record(stream="s", id="1", body=encode(message()).body))
    assert found is not None
    assert found.id == str(ID)


@pytest.mark.parametrize("mark", ["ce_", "ce-", "Ce-", "cloudEvents:", "cloudEvents_"])
def test_every_binding_s_way_to_mark_attributes_is_understood(mark: str) -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "userid": "u"}
    headers = {f"{mark}{name}": value for name, value in attributes.items()} | {"Content-Type": "application/json"}
    found = decode(Record(stream="s", id="1", body=b"[1]", headers=headers, key="k"))
    assert found is not None
    assert (found.data, found.headers, found.key) == ([1], {"user_id": "u"}, "k")


@pytest.mark.parametrize(
    ("attributes", "data"),
    [
        ({"data": None}, None),
        ({"data": "text"}, "text"),
        ({"data_base64": "eyJuIjogMX0=", "datacontenttype": "application/json"}, {"n": 1}),
        ({"data_base64": "aGk=", "datacontenttype": "text/plain"}, "hi"),
        ({"sequence": 7, "flag": True, "none": None, "data": 1}, 1),
    ],
)
def test_data_in_its_forms_is_read(attributes: dict[str, object], data: object) -> None:
    found = decode(structured(**attributes))
    assert found is not None
    assert found.data == data
    if "flag" in attributes:
        assert found.headers == {"sequence": "7", "flag": "true"}


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (structured(id=""), "the attribute id of a CloudEvent is missing"),
        (structured(source=...), "the attribute source of a CloudEvent is missing"),
        (structured(type=...), "the attribute type of a CloudEvent is missing"),
        (structured(specversion="0.3"), "specversion 0.3 is not supported"),
        (structured(time="yesterday"), "such as 2024"),
        (structured(time="2024-02-30T00:00:00Z"), "day"),
        (structured(time="0001-01-01T00:00:00+23:59"), "out of range"),
        (structured(extra=[1]), "extra"),
        (structured(data=1, data_base64="aGk="), "data or data_base64, not both"),
        (structured(data_base64="a"), "data_base64 is invalid"),
        (structured(data_base64="aGk=", datacontenttype="image/png"), "image/png"),
        (Record(stream="s", id="1", body=b"{", headers={"content-type": "application/cloudevents+json"}), "not JSON"),
        (Record(stream="s", id="1", body=b"[]", headers={"content-type": "application/cloudevents+json"}), "object"),
        (Record(stream="s", id="1", body=b"", headers={"content-type": "application/cloudevents+avro"}), "avro"),
        (Record(stream="s", id="1", body=b"", headers={"content-type": "application/cloudevents-batch+json"}), "batch"),
        (Record(stream="s", id="1", body=b"{", headers={"ce_specversion": "1.0"}), "not JSON"),
        (
            Record(stream="s", id="1", body=b'"\xe9"', headers={"ce_specversion": "1.0"}),
            "it is not UTF-8: byte 0xe9 at position 1",
        ),
        (
            Record(stream="s", id="1", body=b"\xe9", headers={"ce_specversion": "1.0", "content-type": "text/plain"}),
            "its data is not UTF-8: byte 0xe9 at position 0; the sender",
        ),
    ],
)
def test_one_that_says_it_is_a_cloudevent_and_is_broken_is_refused(broken: Record, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode(broken)


@given(body=st.binary(), content_type=st.sampled_from(["", "application/cloudevents+json", "application/json"]))
def test_any_input_is_decoded_ignored_or_rejected(body: bytes, content_type: str) -> None:
    for headers in ({"content-type": content_type}, {"content-type": content_type, "ce_specversion": "1.0"}):
        try:
            decode(Record(stream="s", id="1", body=body, headers=headers))
        except ValueError:
            continue
