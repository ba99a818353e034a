"""The oracle finds what breaks a promise, and accepts what does not."""

from collections.abc import Sequence

import pytest

from tests.flow.log import Record
from tests.flow.oracle import Oracle, Promise

TOO_SOON = 1000.0


def change(number: int, was: str | None, now: str, at: float = 0.0, key: str = "a", **given: object) -> Record:
    fields: dict[str, object] = {"queue": "mail", "delivery": f"{key}{number}", "created_at": 0.0, **given}
    return Record(at, at, "delivery", "c", key=key, number=number, was=was, now=now, **fields)  # type: ignore[arg-type]


def publish(*numbers: int, at: float = 0.0, key: str = "a") -> list[Record]:
    return [change(number, None, "pending", at, key, run_at=at, created_at=at) for number in numbers]


def claim(number: int, at: float = TOO_SOON, key: str = "a", **given: object) -> Record:
    return change(number, "pending", "in_flight", at, key, **given)


def end(number: int, now: str = "delivered", at: float = TOO_SOON, key: str = "a", **given: object) -> Record:
    return change(number, "in_flight", now, at, key, **given)


def run(number: int, at: float = TOO_SOON, key: str = "a") -> list[Record]:
    return [claim(number, at, key), end(number, at=at, key=key)]


def found(promise: Promise, log: Sequence[Record]) -> list[str]:
    return [text.removeprefix("c: ") for text in Oracle({"c": promise}).read(log).violations]


DEAD = [claim(1), end(1, "failed")]
REPLAY = change(1, "failed", "pending", TOO_SOON)
DISCARD = change(1, "failed", "failed", TOO_SOON, discarded=True)
LIGHT = publish(1, key="b")


@pytest.mark.parametrize(
    ("promise", "log", "violation"),
    [
        (Promise(limit=1), [*publish(1, 2), claim(1), claim(2), end(1), end(2)], "2 of key '' at once"),
        (Promise(limit=1), [*publish(1, 2), *run(1), *run(2)], None),
        (
            Promise(limit=1, limit_by_key=True),
            [*publish(1, 2), claim(1), claim(2), end(1), end(2)],
            "2 of key 'a' at once",
        ),
        (Promise(limit=1, limit_by_key=True), [*publish(1), *LIGHT, claim(1), *run(1, key="b"), end(1)], None),
        (Promise(rate=(1, 500)), [*publish(1, 2), *run(1, 0), *run(2, 499)], "2 of key 'a' in 499 of 500 ms"),
        (Promise(rate=(1, 500)), [*publish(1, 2), *run(1, 0), *run(2, 500)], None),
        (Promise(order="block"), [*publish(1, 2), *run(2), *run(1)], "key 'a': 2 before 1"),
        (Promise(order="block"), [*publish(1, 2), *run(1), *run(2)], None),
        (
            Promise(order="skip"),
            [*publish(1, 2), claim(1), claim(2), end(1), end(2)],
            "2 of key 'a' at once key 'a': 2 before 1",
        ),
        (Promise(order="block"), [*publish(1, 2), *DEAD, *run(2)], "key 'a': 2 before 1"),
        (Promise(order="skip"), [*publish(1, 2), *DEAD, *run(2)], None),
        (Promise(order="block"), [*publish(1, 2), *DEAD, DISCARD, *run(2)], None),
        (Promise(order="skip"), [*publish(1, 2), *DEAD, REPLAY, *run(2, 2000), *run(1)], "key 'a': 2 before 1"),
        (Promise(order="skip"), [*publish(1, 2), *DEAD, REPLAY, *run(1, 2000), *run(2, 2000)], None),
        (
            Promise(fair=2),
            [*publish(1, 2, 3), *LIGHT, *run(1), *run(2), *run(3), *run(1, key="b")],
            "3 claims of key 'a' while key 'b' waited",
        ),
        (Promise(fair=2), [*publish(1, 2, 3), *LIGHT, *run(1), *run(2), *run(1, key="b"), *run(3)], None),
        (
            Promise(debounce=(100, 500)),
            [*publish(1, 2), *run(1), *run(2)],
            "key 'a': 1 ran although 2 waited",
        ),
        (Promise(debounce=(100, 500)), [*publish(1), *run(1, 50)], "key 'a': 1 ran after 50 ms"),
        (
            Promise(debounce=(100, 500)),
            [*publish(1), change(1, "pending", "failed", discarded=True, superseded=True)],
            "key 'a': 1 was superseded by nothing",
        ),
        (
            Promise(debounce=(100, 500)),
            [*publish(1, 2), change(1, "pending", "failed", TOO_SOON, discarded=True, superseded=True), *run(2)],
            None,
        ),
        (Promise(batch=(2, 100)), [*publish(1), *run(1, 50)], "a batch of 1 after 50 ms"),
        (Promise(batch=(2, 100)), [*publish(1), *run(1, 100)], None),
        (Promise(batch=(2, 100)), [*publish(1, 2), claim(1, 1), claim(2, 1), end(1), end(2)], None),
        (Promise(), [*publish(1), *run(1), REPLAY], "1 became pending after it was delivered 1 of key 'a' is still pending"),
        (Promise(), [*publish(1), claim(1)], "1 of key 'a' is still in_flight"),
    ],
)  # fmt: skip
def test_a_log(promise: Promise, log: list[Record], violation: str | None) -> None:
    assert " ".join(found(promise, log)) == (violation or "")


def test_a_queue_counts_its_consumers_together() -> None:
    log = [*publish(1, 2), claim(1), claim(2), end(1), end(2)]
    assert Oracle({}, {"mail": 1}).read(log).violations == ["2 of queue mail at once"]
    assert Oracle({}, {"mail": 2}).read(log).violations == []


def test_a_paused_key_that_is_claimed_is_found_unless_the_claim_had_begun() -> None:
    pause = Record(0, 0, "pause", "c", key="a")
    resume = Record(1, 1, "resume", "c", key="a")
    assert found(Promise(), [*publish(1), pause, *run(1, 300)]) == ["key 'a' was claimed while it was paused"]
    assert found(Promise(), [*publish(1), pause, *run(1, 100)]) == []
    assert found(Promise(), [*publish(1), pause, resume, *run(1, 300)]) == []
