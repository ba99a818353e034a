"""Hostile content: refused with a typed error before it is stored, or made fit to be recorded; never in between."""

import math
from collections.abc import Callable

import orjson
import pytest

from holdfast.core.change import DeadLetter, Discard, Retry
from holdfast.core.errors import Cancel, InvalidKey, InvalidName, InvalidPayload, PayloadTooLarge
from holdfast.core.failures.report import MESSAGE_LIMIT, TRACE_LIMIT, report
from holdfast.core.message import Address
from holdfast.core.outcome import Cancelled, outcome_of
from holdfast.stores.admin.actions import block_consumer
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.messages.registry import consumers
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages, runs
from tests.support.builders import (
    SECOND,
    claim_all,
    claim_one,
    delivery,
    finish,
    job,
    message,
    outcome,
    put,
    register_consumers,
    sql,
)


def deep(levels: int) -> object:
    nested: object = "bottom"
    for _ in range(levels):
        nested = [nested]
    return nested


REFUSED = {
    "NUL": {"a": "x\x00y"},
    "NUL in a key": {"x\x00": 1},
    "lone surrogate": {"a": "\ud800"},
    "lone surrogate in a key": {"\udfff": 1},
    "NaN": {"a": [1, math.nan]},
    "infinity": {"a": -math.inf},
    "2^64": {"a": 2**64},
    "below 64 bits": {"a": -(2**63) - 1},
    "depth 10,000": deep(10_000),
    "bytes": {"a": b"raw"},
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED)
async def test_a_payload_no_database_keeps_is_refused_before_it_is_stored(payload: object) -> None:
    with pytest.raises(InvalidPayload) as refused:
        message(payload=payload)
    assert refused.value.path.startswith("$")


def test_a_payload_of_fifty_megabytes_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="52,428,"):
        message(payload="x" * 50 * 2**20)


@pytest.mark.parametrize("headers", [{"a": "\x00"}, {"\ud800": "a"}, {"a": "x" * 20_000}, {"a": 1}, {"": "a"}])
def test_headers_that_cannot_be_kept_are_refused(headers: dict[str, object]) -> None:
    with pytest.raises(InvalidPayload, match="headers"):
        message(headers=headers)


@pytest.mark.parametrize("key", ["", "x" * 501, "a\x00", "a\n", "\ud800"])
def test_keys_that_cannot_be_kept_are_refused(key: str) -> None:
    with pytest.raises(InvalidKey):
        message(key=key)
    with pytest.raises(InvalidKey):
        Address(consumer="mail", unique=key)


@pytest.mark.parametrize("name", ['a"b', "a'b", "$$", "a.b", "a\nb", "a\x00", "\ud800", "", "a b", "x" * 101])
def test_names_that_could_mislead_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        Address(consumer=name)
    with pytest.raises(InvalidName):
        Address(consumer="mail", queue=name)


@pytest.mark.parametrize("source", ['a"b', "a'b", "$$", "a\nb", "a\x00", "\ud800", "", "a b", "x" * 101])
def test_sources_and_types_that_could_mislead_are_refused(source: str) -> None:
    with pytest.raises(InvalidName):
        message(source=source)
    with pytest.raises(InvalidName):
        message(source)


EXTREME = {
    "integers": [2**64 - 1, -(2**63), 0, -1],
    "floats": [1e308, 5e-324, 0.1, -0.0, 1.0],
    "texts": ["", "'", '"', "\\", "%s %(a)s %", ":name ::text", "{hf}", "$1 $$", "\u2028", "\U0001f600", "\x01\x7f"],
    "depth": deep(250),
    "keys": {"": 1, "a.b": 2, "$": 3, "é": 4, " ": 5, "%": 6},
    "size": "x" * (2**20 - 3),
}


@pytest.mark.parametrize("payload", EXTREME.values(), ids=EXTREME)
async def test_an_extreme_payload_comes_back_as_it_was(store: Store, payload: object) -> None:
    (first,) = await put(store, message(payload=payload, key="k"))
    (found,) = await store.run(messages(id=first.id))
    assert orjson.loads(found.payload) == payload
    (second,) = await put(store, message(payload=payload, key="k"))
    assert second.id == first.id, "the same content is the same message"


async def test_the_longest_names_and_keys_fit_into_every_index(store: Store) -> None:
    key, name = "\U0001f600" * 500, "x" * 100
    address = Address(consumer=name, queue="y" * 100)
    await put(store, message("z" * 100, source="s" * 100, key=key, addressed=[address]))
    await put(store, message(addressed=[Address(consumer=name, queue="y" * 100, unique=key)]))
    assert len(sql(store, "select id from {hf}delivery")) == 2


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def chained() -> Exception:
    error = ValueError("first")
    for n in range(10_000):
        following = ValueError(f"link {n}")
        following.__cause__ = error
        error = following
    return error


HOSTILE: dict[str, Callable[[], Exception]] = {
    "NUL": lambda: ValueError("x\x00y"),
    "lone surrogate": lambda: ValueError("\ud800\udfff"),
    "50 MB": lambda: ValueError("x" * 50 * 2**20),
    "cannot be printed": Unprintable,
    "exits when printed": Exits,
    "ten thousand causes": chained,
    "odd type": lambda: type("Odd", (Exception,), {"__qualname__": "Odd\x00\ud800" + "y" * 5000})("x"),
    "group": lambda: ExceptionGroup("many", [ValueError(f"\x00{n}") for n in range(1000)]),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_error_is_recorded_bounded_and_clean(store: Store, make: Callable[[], Exception]) -> None:
    claimed = await claim_one(store)
    error = report(make())
    assert await finish(store, claimed, Retry(SECOND), error=error)
    row = await delivery(store, claimed.id)
    (run,) = await store.run(runs(claimed.id))
    assert row.last_error == run.error == error.message
    assert run.trace == error.trace
    assert len(error.message) <= MESSAGE_LIMIT
    assert len(error.trace) <= TRACE_LIMIT
    assert len(error.type) <= 300
    assert not {"\x00", "\ud800"} & set(error.message + error.trace + error.type)


@pytest.mark.parametrize("reason", ["x\x00y", "\ud800", "x" * 50 * 2**20], ids=["NUL", "lone surrogate", "50 MB"])
async def test_a_hostile_reason_to_cancel_is_recorded_bounded_and_clean(store: Store, reason: str) -> None:
    claimed = await claim_one(store)
    cancelled = outcome_of(Cancel(reason))
    assert isinstance(cancelled, Cancelled)
    assert await finish(store, claimed, Discard(cancelled.reason), outcome="cancelled")
    row = await delivery(store, claimed.id)
    (run,) = await store.run(runs(claimed.id))
    assert row.last_error is not None
    assert row.last_error == run.error
    assert len(row.last_error) <= MESSAGE_LIMIT
    assert not {"\x00", "\ud800"} & set(row.last_error)


async def test_a_hostile_resource_can_be_blamed(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await store.run(block_consumer("mail", "d\x00b \ud800" + "x" * 10_000, SECOND, "w1"))
    (blocked,) = await store.run(consumers())
    assert blocked.blocked_resource is not None
    assert len(blocked.blocked_resource) <= 200


async def test_one_hostile_failure_does_not_stop_its_batch(store: Store) -> None:
    await put(store, job(), job())
    one, two = await claim_all(store)
    batch = [
        outcome(one, DeadLetter(), error=report(Unprintable())),
        outcome(two, Discard("\x00"), outcome="cancelled"),
    ]
    assert await store.run(settle("w1", batch)) == {one.id, two.id}
