"""What a record becomes: its type, its key, its source, and what makes it unreadable."""

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import orjson
import pytest

from holdfast.brokers.decoder import MISSING_ID_PREFIX, RecordDecoder, record_of
from holdfast.brokers.protocol import Record
from holdfast.core.errors import UnreadableRecord
from holdfast.core.events.payload import MAX_REQUEST_ID_BYTES
from holdfast.core.message import Address

AT = datetime(2026, 1, 2, tzinfo=UTC)


def ids() -> Iterator[UUID]:
    return map(UUID, (f"01890000-0000-7000-8000-{n:012}" for n in range(1, 100)))


def decoder(*patterns: str, origin: str = "rabbitmq", max_bytes: int = 1000) -> RecordDecoder:
    return RecordDecoder(
        origin=origin,
        patterns=patterns or ("payment.settled",),
        address=Address(consumer="settle"),
        generation=3,
        max_bytes=max_bytes,
        fresh=ids().__next__,
    )


def record(body: bytes = b"{}", id: str | None = "7", stream: str = "payments", **headers: str) -> Record:
    return Record(stream=stream, id=id, body=body, headers=headers, at=AT)


def test_a_plain_record_is_of_the_consumers_type_and_keeps_its_id_and_headers() -> None:
    message = decoder().message(record(b'{"n": 1}', request_id="r-1", **{"Content-Type": "application/json"}))
    assert message is not None
    assert (message.type, message.key, message.source) == ("payment.settled", "7", "rabbitmq:payments")
    assert (message.payload, message.headers) == ('{"n":1}', {"request_id": "r-1"})
    assert (message.occurred_at, message.generation) == (AT, 3)
    assert [to.consumer for to in message.addressed] == ["settle"]


def test_a_record_without_an_id_is_never_the_same_as_another_even_with_the_same_content() -> None:
    read = decoder()
    keys = [read.message(record(id=None)), read.message(record(id=None))]
    assert all(one is not None and one.key is not None and one.key.startswith(MISSING_ID_PREFIX) for one in keys)
    assert len({one.key for one in keys if one is not None}) == 2


@pytest.mark.parametrize("id", ["x" * 600, "a\nb", "\ud800"])
def test_an_id_that_is_no_key_still_identifies_the_record(id: str) -> None:
    read = decoder()
    first, again, other = (read.message(record(id=given)) for given in (id, id, id + "!"))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.key == again.key != other.key


def test_an_unusual_stream_name_becomes_a_unique_source() -> None:
    read = decoder()
    names = {read.source_of(stream) for stream in ("{a}b", "[a]b", "x" * 200, "x" * 201, "ok.name")}
    assert len(names) == 5
    assert "rabbitmq:ok.name" in names


@pytest.mark.parametrize(
    ("body", "headers", "problem"),
    [
        (b'{"n": "\xe9"}', {}, "is not UTF-8: byte 0xe9 at position 7; the sender must encode text as UTF-8"),
        (b"", {}, "not JSON"),
        (b'{"a": "\\u0000"}', {}, "NUL"),
        (orjson.dumps("x" * 2000), {}, "over the limit"),
        (b"{}", {"content-type": "application/cloudevents+json"}, "specversion"),
        (b'{"specversion": "1.0", "id": "1", "source": "/a", "type": "bad..type"}', {}, "empty part"),
    ],
)
def test_a_record_that_cannot_be_stored_is_unreadable_and_kept_unchanged(
    body: bytes, headers: dict[str, str], problem: str
) -> None:
    came = Record(stream="payments", id="7", body=body, headers=headers, at=AT)
    with pytest.raises(UnreadableRecord, match=problem):
        decoder("payment.settled" if b"type" not in body else "*").message(came)
    kept = record_of(orjson.loads(decoder().raw(came).payload))
    assert (kept.body, kept.id, kept.stream, kept.headers, kept.at) == (body, "7", "payments", headers, AT)


def test_more_headers_than_fit_are_left_out_and_the_record_is_taken() -> None:
    many = {f"h{n}": "x" * 1000 for n in range(40)}
    message = decoder().message(Record(stream="payments", id="7", body=b"{}", headers={"bad": "\x00", **many}))
    assert message is not None
    assert 10 < len(message.headers) < 20
    assert "bad" not in message.headers


def test_a_request_id_that_is_too_long_for_the_index_is_left_out_and_the_record_is_taken() -> None:
    """PostgreSQL would refuse the message each time, and the subscription could not read the records after it."""
    ids = {"request_id": "x" * (MAX_REQUEST_ID_BYTES + 1), "user_id": "x" * (MAX_REQUEST_ID_BYTES + 1)}
    message = decoder().message(Record(stream="payments", id="7", body=b"{}", headers=ids))
    assert message is not None
    assert [name for name in ids if name in message.headers] == ["user_id"]
    message = decoder().message(record(request_id="x" * MAX_REQUEST_ID_BYTES))
    assert message is not None
    assert "request_id" in message.headers


def test_only_holdfast_creates_raw_messages() -> None:
    kept = orjson.loads((decoder().raw(record(stream="another service's"))).payload)
    event = {"specversion": "1.0", "id": "1", "source": "/bank", "type": "holdfast.raw", "data": kept}
    with pytest.raises(UnreadableRecord, match="only Holdfast creates"):
        decoder("*").message(record(orjson.dumps(event)))
