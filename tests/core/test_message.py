"""A new message is one that every store can take, or it is refused before anything is written."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from holdfast.core.errors import ConfigurationError, InvalidDuration, InvalidKey, InvalidName, InvalidPayload
from holdfast.core.message import Address, Message, NewMessage, new_message
from holdfast.core.retry import RetryPolicy

ID = UUID("01890000-0000-7000-8000-000000000001")
BERLIN = timezone(timedelta(hours=1))


def make(**changes) -> NewMessage:
    facts: dict[str, Any] = {"id": ID, "type": "order.placed", "source": "shop", "payload": {"b": 1, "a": None}}
    return new_message(**facts | changes)


def test_a_message_is_built_from_plain_facts() -> None:
    made = make(
        key="order:1",
        headers={"x-request-id": "7"},
        generation=3,
        occurred_at=datetime(2026, 1, 1, 1, tzinfo=BERLIN),
        addressed=[Address(consumer="billing"), Address(consumer="mail")],
    )
    assert made == NewMessage(
        id=ID,
        type="order.placed",
        source="shop",
        payload='{"a":null,"b":1}',
        key="order:1",
        headers={"x-request-id": "7"},
        generation=3,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        addressed=(Address(consumer="billing"), Address(consumer="mail")),
    )
    assert made.occurred_at is not None
    assert made.occurred_at.tzinfo is UTC


def test_what_is_left_out_has_its_default() -> None:
    made = make()
    assert (made.key, made.headers, made.generation, made.occurred_at) == (None, {}, 0, None)
    assert made.addressed == ()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"type": "order..placed"}, InvalidName),
        ({"type": "order.*"}, InvalidName),
        ({"source": "shop'"}, InvalidName),
        ({"payload": {"a": float("nan")}}, InvalidPayload),
        ({"payload": "x" * 100, "max_bytes": 50}, InvalidPayload),
        ({"headers": {"a": 1}}, InvalidPayload),
        ({"key": ""}, InvalidKey),
        ({"key": "a\x00"}, InvalidKey),
        ({"generation": -1}, ConfigurationError),
        ({"generation": 2**31}, ConfigurationError),
        ({"generation": True}, ConfigurationError),
        ({"generation": "3"}, ConfigurationError),
        ({"occurred_at": datetime(2026, 1, 1)}, ConfigurationError),  # noqa: DTZ001
        ({"occurred_at": "2026-01-01"}, ConfigurationError),
        ({"addressed": [Address(consumer="a"), Address(consumer="a", queue="b")]}, ConfigurationError),
    ],
)
def test_a_wrong_part_is_refused(changes: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"consumer": "a.b"}, InvalidName),
        ({"queue": "a$$b"}, InvalidName),
        ({"priority": -1}, ConfigurationError),
        ({"priority": 4}, ConfigurationError),
        ({"priority": True}, ConfigurationError),
        ({"priority": 1.0}, ConfigurationError),
        ({"max_attempts": 0}, ConfigurationError),
        ({"delay": timedelta(seconds=-1)}, InvalidDuration),
        ({"run_at": datetime(2026, 1, 1)}, ConfigurationError),  # noqa: DTZ001
        ({"delay": timedelta(1), "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, ConfigurationError),
        ({"unique": ""}, InvalidKey),
    ],
)
def test_a_wrong_address_is_refused(changes: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        Address(**{"consumer": "a"} | changes)  # type: ignore[arg-type]


def test_an_address_keeps_what_it_is_given_in_utc() -> None:
    policy = RetryPolicy.fixed(1)
    address = Address(
        consumer="a",
        queue="mail",
        priority=0,
        max_attempts=3,
        run_at=datetime(2026, 1, 1, 1, tzinfo=BERLIN),
        retry=policy,
        unique="u",
    )
    assert address.run_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert address.run_at is not None
    assert address.run_at.tzinfo is UTC
    assert (address.queue, address.priority, address.max_attempts) == ("mail", 0, 3)
    assert (address.retry, address.unique, address.delay) == (policy, "u", None)


def test_bounds_are_inclusive() -> None:
    assert make(generation=2**31 - 1).generation == 2**31 - 1
    assert Address(consumer="a", priority=3).priority == 3
    assert Address(consumer="a", delay=timedelta(0)).delay == timedelta(0)


def test_an_address_defaults_to_the_default_queue_and_priority_one() -> None:
    assert (Address(consumer="a").queue, Address(consumer="a").priority) == ("default", 1)


@pytest.mark.parametrize(("value", "name"), [(make(), "payload"), (Address(consumer="a"), "queue")])
def test_messages_and_addresses_cannot_be_changed(value: object, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, name, "other")


def test_a_stored_message_may_not_know_its_position_yet() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    stored = Message(id=ID, type="a", source="s", key=None, payload="{}", headers={}, generation=0, occurred_at=at)
    assert stored.position is None
