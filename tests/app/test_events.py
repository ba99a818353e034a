"""Events: a class with a stable name and a version, on its way into the store and out again."""

import json
import sqlite3
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest
import typing_extensions
from pydantic import BaseModel

from holdfast import (
    ConfigurationError,
    Context,
    Holdfast,
    InvalidPayload,
    PayloadTooLarge,
    Router,
    correlate,
    event,
    upcast,
)
from holdfast.core.events.event import NewerVersion, event_type, version_of
from holdfast.core.events.payload import MAX_HEADER_BYTES, MAX_HEADERS


@event("order.placed")
@dataclass
class Plain:
    order_id: int
    tags: list[str] = field(default_factory=list)


@event("order.placed")
@dataclass(frozen=True, slots=True)
class FrozenSlots:
    order_id: int
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
@event("order.placed")
class SlotsAbove:
    """`slots=True` makes a second class; the name must not stay with the first."""

    order_id: int
    tags: list[str] = field(default_factory=list)


@event("order.placed")
class Model(BaseModel):
    order_id: int
    tags: list[str] = []


@event("order.placed")
class Typed(typing_extensions.TypedDict):
    order_id: int
    tags: typing_extensions.NotRequired[list[str]]


CLASSES = [Plain, FrozenSlots, SlotsAbove, Model]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def hf(path: Path) -> Iterator[Holdfast]:
    hf = Holdfast(f"sqlite:///{path}", source="shop")
    yield hf
    hf.store.close_sync()


@dataclass(frozen=True)
class Message:
    id: UUID
    type: str
    payload: Any
    headers: dict[str, str]


Stored = Callable[[], list[Message]]


@pytest.fixture
def stored(path: Path) -> Stored:
    def look() -> list[Message]:
        with closing(sqlite3.connect(path)) as conn:
            rows = conn.execute("select id, type, payload, headers from holdfast_message order by position").fetchall()
        return [
            Message(UUID(id), type, json.loads(payload), json.loads(headers)) for id, type, payload, headers in rows
        ]

    return look


class TestClasses:
    @pytest.mark.parametrize("cls", CLASSES)
    def test_an_instance_is_stored_under_its_name_and_comes_back_as_one(
        self, hf: Holdfast, stored: Stored, cls: Any
    ) -> None:
        got: list[object] = []

        @hf.consumer(cls)
        def consume(order: Any) -> None:
            got.append(order)

        sent = cls(order_id=7, tags=["a"])
        hf.sync.publish(sent, conn=None)
        (message,) = stored()
        assert (message.type, message.payload) == ("order.placed", {"order_id": 7, "tags": ["a"]})
        hf.run(until_idle=True)
        assert got == [sent]
        assert type(got[0]) is cls

    @pytest.mark.parametrize("cls", CLASSES)
    def test_a_class_and_a_dict_is_checked_and_completed(self, hf: Holdfast, stored: Stored, cls: Any) -> None:
        hf.sync.publish(cls, {"order_id": "7"}, conn=None)
        hf.sync.publish(cls, cls(order_id=8), conn=None)
        assert [message.payload for message in stored()] == [
            {"order_id": 7, "tags": []},
            {"order_id": 8, "tags": []},
        ]
        with pytest.raises(
            InvalidPayload, match=r"\$\.order_id: Field required; order.placed is declared by .*test_events"
        ):
            hf.sync.publish(cls, {"tags": []}, conn=None)

    def test_a_typed_dict_is_published_by_class_and_value(self, hf: Holdfast, stored: Stored) -> None:
        got: list[object] = []

        @hf.consumer(Typed)
        def consume(order: Typed) -> None:
            got.append(order)

        hf.sync.publish(Typed, Typed(order_id=7), conn=None)
        with pytest.raises(InvalidPayload, match=r"\$\.order_id"):
            hf.sync.publish(Typed, {"tags": []}, conn=None)
        with pytest.raises(InvalidPayload, match="dictionary"):
            hf.sync.publish(Typed, Plain(1), conn=None)
        assert [(message.type, message.payload) for message in stored()] == [("order.placed", {"order_id": 7})]
        hf.run(until_idle=True)
        assert got == [{"order_id": 7}]

    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="typing.TypedDict does from Python 3.12")
    def test_a_typed_dict_that_cannot_be_checked_is_refused_when_it_is_declared(self) -> None:
        class Order(typing.TypedDict):
            order_id: int

        with pytest.raises(ConfigurationError, match="from typing_extensions import TypedDict"):
            event("order.placed")(Order)

    def test_a_plain_name_needs_no_class(self, hf: Holdfast, stored: Stored) -> None:
        hf.sync.publish("order.placed", {"order_id": 7}, conn=None)
        hf.sync.publish("order.counted", conn=None)
        hf.sync.publish_many([("order.placed", {"order_id": 8}), Plain(9)], conn=None)
        assert [(m.type, m.payload) for m in stored()] == [
            ("order.placed", {"order_id": 7}),
            ("order.counted", {}),
            ("order.placed", {"order_id": 8}),
            ("order.placed", {"order_id": 9, "tags": []}),
        ]

    def test_a_named_tuple_is_an_instance_and_no_pair(self, hf: Holdfast, stored: Stored) -> None:
        @event("point.seen")
        class Point(NamedTuple):
            x: int
            y: int

        got: list[object] = []
        hf.consumer(Point, name="points")(got.append)
        hf.sync.publish_many([Point(1, 2)], conn=None)
        hf.run(until_idle=True)
        assert [message.type for message in stored()] == ["point.seen"]
        assert got == [Point(1, 2)]

    def test_pydantic_aliases_survive_the_journey(self, hf: Holdfast) -> None:
        @event("order.renamed")
        class Renamed(BaseModel):
            order_id: int = pydantic.Field(alias="orderId")

        got: list[Renamed] = []
        hf.consumer(Renamed, name="renamed")(got.append)
        hf.sync.publish(Renamed(orderId=7), conn=None)
        hf.run(until_idle=True)
        assert [one.order_id for one in got] == [7]


class TestRefusals:
    def test_an_undecorated_class_is_refused_in_every_use(self, hf: Holdfast) -> None:
        @dataclass
        class Nameless:
            order_id: int

        for use in (
            lambda: hf.sync.publish(Nameless(1), conn=None),
            lambda: hf.sync.publish(Nameless, {"order_id": 1}, conn=None),
            lambda: hf.consumer(Nameless)(print),
            lambda: upcast(Nameless, from_version=1),
        ):
            with pytest.raises(ConfigurationError, match=r"Nameless has no event name.*import paths are not names"):
                use()

    def test_a_subclass_does_not_inherit_the_name(self, hf: Holdfast) -> None:
        @dataclass
        class Special(Plain): ...

        class SpecialModel(Model): ...

        class SpecialTyped(Typed): ...

        for cls in (Special, SpecialModel, SpecialTyped):
            with pytest.raises(ConfigurationError, match="has no event name"):
                event_type(cls)
        with pytest.raises(ConfigurationError, match="has no event name"):
            hf.sync.publish(Special(1), conn=None)

    def test_a_subclass_may_have_a_separate_name(self) -> None:
        @event("order.special")
        @dataclass
        class Special(Plain): ...

        assert (event_type(Special).name, event_type(Plain).name) == ("order.special", "order.placed")

    @pytest.mark.parametrize("name", ["", "order placed", "order..placed", "order.*", "*", "a\nb", "x" * 300])
    def test_a_name_that_is_none_is_refused_when_it_is_declared(self, name: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            event(name)

    @pytest.mark.parametrize("version", [0, -1, 1.5, "2", True, None])
    def test_a_version_that_is_none_is_refused_when_it_is_declared(self, version: Any) -> None:
        with pytest.raises(ConfigurationError, match="whole number, at least 1"):
            event("order.placed", version=version)

    def test_only_classes_are_decorated(self) -> None:
        with pytest.raises(ConfigurationError, match="decorates a class"):
            event("order.placed")(print)  # type: ignore[type-var]

    def test_an_instance_with_a_separate_payload_is_refused(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="is the payload"):
            hf.sync.publish(Plain(1), {"order_id": 2}, conn=None)

    def test_a_class_without_a_payload_is_refused(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="without a payload"):
            hf.sync.publish(Plain, conn=None)

    def test_a_payload_over_the_limit_is_refused_and_the_limit_can_be_moved(self, path: Path, stored: Stored) -> None:
        small = Holdfast(f"sqlite:///{path}", max_payload=100)
        with pytest.raises(PayloadTooLarge, match="over the limit of 100"):
            small.sync.publish("note.taken", {"text": "x" * 100}, conn=None)
        large = Holdfast(f"sqlite:///{path}", max_payload=2_000_000)
        large.sync.publish("note.taken", {"text": "x" * 1_500_000}, conn=None)
        with pytest.raises(PayloadTooLarge, match="over the limit of 1,048,576"):
            Holdfast(f"sqlite:///{path}").sync.publish("note.taken", {"text": "x" * 1_500_000}, conn=None)
        assert len(stored()) == 1
        large.store.close_sync()

    @pytest.mark.parametrize(
        ("payload", "path"),
        [
            ({"text": "a\x00b"}, "$.text"),
            ({"text": "\ud800"}, "$.text"),
            ({"n": [1.0, float("nan")]}, "$.n[1]"),
            ({"n": 2**64}, "$.n"),
            ({"n": {1, 2}}, "$.n"),
            ({1: "x"}, "$"),
        ],
        ids=repr,
    )
    def test_what_json_would_lose_is_refused_at_its_place(self, hf: Holdfast, payload: object, path: str) -> None:
        with pytest.raises(InvalidPayload) as refusal:
            hf.sync.publish("note.taken", payload, conn=None)
        assert refusal.value.path == path


class TestChecks:
    """What a consumer could not read is refused before it is stored."""

    @pytest.mark.parametrize("cls", [Plain, FrozenSlots, SlotsAbove])
    def test_an_instance_that_does_not_fit_its_class_is_not_published(
        self, hf: Holdfast, stored: Stored, cls: Any
    ) -> None:
        problem = (
            r"invalid at \$\.order_id: Input should be a valid integer.*; order.placed is declared by .*test_events"
        )
        with pytest.raises(InvalidPayload, match=problem):
            hf.sync.publish(cls("notint"), conn=None)
        with pytest.raises(InvalidPayload, match=r"at \$\.tags\[1\]: .*valid string"):
            hf.sync.publish(cls, cls(1, ["a", 2]), conn=None)
        with pytest.raises(InvalidPayload, match=problem):
            hf.sync.publish_many([cls(1), cls(2), cls("notint")], conn=None)
        with pytest.raises(InvalidPayload, match=problem):
            hf.sync.publish_many([cls(n) for n in range(500)] + [cls("notint")], conn=None)
        hf.sync.publish(cls(1), conn=None)
        assert [message.payload for message in stored()] == [{"order_id": 1, "tags": []}]

    def test_checking_can_be_left_out_for_an_app_or_for_one_publish(
        self, hf: Holdfast, path: Path, stored: Stored
    ) -> None:
        hf.sync.publish(Plain("one"), conn=None, validate=False)  # type: ignore[arg-type]
        hf.sync.publish_many([Plain("two")], conn=None, validate=False)  # type: ignore[arg-type]
        unchecked = Holdfast(f"sqlite:///{path}", validate=False)
        unchecked.sync.publish(Plain, {"order_id": "three"}, conn=None)
        with pytest.raises(InvalidPayload):
            unchecked.sync.publish(Plain, {"order_id": "four"}, conn=None, validate=True)
        unchecked.store.close_sync()
        assert [message.payload["order_id"] for message in stored()] == ["one", "two", "three"]

    def test_a_model_is_not_checked_a_second_time(self, hf: Holdfast, stored: Stored) -> None:
        checks = 0

        @event("order.counted")
        class Counted(BaseModel):
            order_id: int

            @pydantic.field_validator("order_id")
            @classmethod
            def count(cls, value: int) -> int:
                nonlocal checks
                checks += 1
                return value

        hf.sync.publish(Counted(order_id=1), conn=None)
        assert (checks, len(stored())) == (1, 1)

    def test_a_class_that_cannot_be_checked_says_so(self, hf: Holdfast) -> None:
        class Strange: ...

        @event("order.strange")
        @dataclass
        class Order:
            what: Strange

        with pytest.raises(ConfigurationError, match=r"cannot be checked against .*Order: .*validate=False"):
            hf.sync.publish(Order, {"what": 1}, conn=None)

    def test_a_plain_class_is_no_event(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="is a plain class, which cannot be stored; put @dataclass below"):

            @event("order.plain")
            class Order:
                def __init__(self, order_id: int) -> None:
                    self.order_id = order_id

        @event("order.plain")
        class Annotated:
            order_id: int

        with pytest.raises(ConfigurationError, match=r"Annotated is a plain class"):
            hf.consumer(Annotated)

    def test_two_classes_cannot_have_one_name_in_one_app(self, hf: Holdfast) -> None:
        problem = r"two classes are declared as event 'order.placed' version 1: .*Plain and .*Model"
        hf.consumer(Plain, name="one")(print)
        for use in (
            lambda: hf.consumer(Model, name="two")(print),
            lambda: hf.projector(Model, name="two")(print),
            lambda: hf.reaction(Model)(print),
            lambda: hf.sync.publish(Model(order_id=1), conn=None),
            lambda: hf.sync.publish_many([Plain(1), Model(order_id=1)], conn=None),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                use()
        router = Router()
        router.consumer(Model, name="two")(print)
        with pytest.raises(ConfigurationError, match=problem):
            hf.include(router)
        assert list(hf.handlers) == ["one"]

    def test_a_handler_takes_the_class_that_it_subscribes_to(self, hf: Holdfast) -> None:
        def takes_plain(order: Plain) -> None: ...

        def takes_a_dict(ctx: Context, order: dict[str, Any]) -> None: ...

        def takes_a_base(order: BaseModel | None) -> None: ...

        def takes_anything(*args: Any) -> None: ...

        problem = r"takes_plain takes order: .*Plain, but subscribes to order.placed, whose class is .*Model"
        with pytest.raises(ConfigurationError, match=problem):
            hf.consumer(Model)(takes_plain)
        with pytest.raises(ConfigurationError, match=problem):
            hf.reaction(Model)(takes_plain)
        with pytest.raises(ConfigurationError, match=r"takes_a_dict takes order: dict\[str, .*Model"):
            hf.projector(Model)(takes_a_dict)
        with pytest.raises(ConfigurationError, match=r"subscribes by name and so gets .*; .*@hf.consumer\(Plain\)"):
            hf.consumer("order.*")(takes_plain)
        hf.consumer("order.*")(takes_a_dict)
        hf.consumer(Typed, name="typed")(takes_a_dict)
        other = Router()
        other.consumer(Model)(takes_a_base)
        other.consumer(Model)(takes_anything)

    def test_a_stored_payload_that_does_not_fit_names_versions_and_upcasts(self, hf: Holdfast) -> None:
        problem = (
            r"\$\.order_id: .*order.placed version 1 does not fit .*Plain.*raise version= in @event\('order.placed'\) and "
            r"convert older payloads with @upcast\(Plain, from_version=1\)"
        )
        for text in ('{"order_id": "notint"}', "{}", "[]"):
            with pytest.raises(InvalidPayload, match=problem if "not" in text else "does not fit"):
                event_type(Plain).read(text, 1)


class TestVersions:
    @pytest.fixture
    def third(self) -> Any:
        @event("order.placed", version=3)
        @dataclass
        class OrderPlaced:
            order_id: int
            currency: str
            cents: int

        @upcast(OrderPlaced, from_version=1)
        def add_currency(old: dict[str, Any]) -> dict[str, Any]:
            return {**old, "currency": "EUR"}

        @upcast(OrderPlaced, from_version=2)
        def count_cents(old: dict[str, Any]) -> dict[str, Any]:
            return {"order_id": old["order_id"], "currency": old["currency"], "cents": round(old["price"] * 100)}

        return OrderPlaced

    def test_the_version_travels_in_a_header_and_the_first_needs_none(
        self, hf: Holdfast, stored: Stored, third: Any
    ) -> None:
        hf.sync.publish(third(1, "EUR", 100), conn=None)
        hf.sync.publish(Plain(1), conn=None)
        assert [version_of(message.headers) for message in stored()] == [3, 1]
        assert "event_version" not in stored()[1].headers

    def test_older_payloads_go_up_step_by_step(self, third: Any) -> None:
        known = event_type(third)
        assert known.read('{"order_id": 7, "price": 1.5}', 1) == third(7, "EUR", 150)
        assert known.read('{"order_id": 7, "price": 1.5, "currency": "USD"}', 2) == third(7, "USD", 150)
        assert known.read('{"order_id": 7, "cents": 150, "currency": "USD"}', 3) == third(7, "USD", 150)

    def test_a_consumer_gets_old_events_as_new_ones(self, hf: Holdfast, third: Any) -> None:
        got: list[object] = []
        hf.consumer(third, name="billing")(got.append)
        hf.sync.publish("order.placed", {"order_id": 7, "price": 1.5}, conn=None)
        two = {"order_id": 8, "price": 2, "currency": "USD"}
        hf.sync.publish("order.placed", two, conn=None, headers={"event_version": "2"})
        hf.run(until_idle=True)
        assert got == [third(7, "EUR", 150), third(8, "USD", 200)]

    def test_a_newer_version_is_left_alone(self, third: Any) -> None:
        with pytest.raises(NewerVersion, match="version 4, this worker knows 3") as newer:
            event_type(third).read("{}", 4)
        assert (newer.value.type, newer.value.version, newer.value.known) == ("order.placed", 4, 3)

    def test_a_step_that_is_missing_is_named(self) -> None:
        @event("order.placed", version=3)
        @dataclass
        class OrderPlaced:
            order_id: int

        upcast(OrderPlaced, from_version=2)(dict)
        with pytest.raises(InvalidPayload, match="no upcast from version 1"):
            event_type(OrderPlaced).read('{"order_id": 1}', 1)
        assert event_type(OrderPlaced).read('{"order_id": 1}', 2) == OrderPlaced(1)

    def test_what_an_upcast_returns_is_checked(self) -> None:
        @event("order.placed", version=2)
        @dataclass
        class OrderPlaced:
            order_id: int

        upcast(OrderPlaced, from_version=1)(lambda old: {"order_id": "not a number"})
        with pytest.raises(InvalidPayload, match=r"\$\.order_id"):
            event_type(OrderPlaced).read("{}", 1)

    @pytest.mark.parametrize("version", [0, 3, 4])
    def test_an_upcast_to_nowhere_is_refused(self, third: Any, version: int) -> None:
        with pytest.raises(ConfigurationError, match="give 1 to 2"):
            upcast(third, from_version=version)

    def test_two_upcasts_from_one_version_are_refused(self, third: Any) -> None:
        with pytest.raises(ConfigurationError, match="two upcasts from version 1"):
            upcast(third, from_version=1)(dict)

    def test_upcasts_stay_with_a_class_that_slots_recreated(self) -> None:
        @dataclass(slots=True)
        @event("order.placed", version=2)
        class OrderPlaced:
            order_id: int

        upcast(OrderPlaced, from_version=1)(lambda old: {"order_id": old["id"]})
        read = event_type(OrderPlaced).read('{"id": 7}', 1)
        assert read == OrderPlaced(7)

    def test_a_version_that_is_no_number_is_refused(self) -> None:
        with pytest.raises(InvalidPayload, match="'two' is not a number"):
            version_of({"event_version": "two"})

    def test_a_class_decides_its_version_not_the_headers(self, hf: Holdfast, stored: Stored, third: Any) -> None:
        hf.sync.publish(Plain(1), conn=None, headers={"event_version": "9"})
        hf.sync.publish(third(1, "EUR", 1), conn=None, headers={"event_version": "9"})
        assert [version_of(message.headers) for message in stored()] == [1, 3]

    def test_the_version_of_the_message_being_handled_does_not_travel_on(
        self, hf: Holdfast, stored: Stored, third: Any
    ) -> None:
        @hf.consumer(third, name="billing")
        def bill(ctx: Context, order: Any) -> None:
            hf.sync.publish("order.billed", {"order_id": order.order_id}, conn=None)

        with correlate(request_id="r-1"):
            hf.sync.publish(third(1, "EUR", 1), conn=None)
        hf.run(until_idle=True)
        first, second = stored()
        assert first.headers == {"request_id": "r-1", "event_version": "3"}
        assert second.headers == {"request_id": "r-1"}, "a plain name has version 1 unless it says otherwise"


class TestHeaders:
    def test_correlation_ids_travel_into_the_headers(self, hf: Holdfast, stored: Stored) -> None:
        with correlate(request_id="r-1", user_id=7, org_id=None):
            with correlate(trace_id="t-1"):
                hf.sync.publish(Plain(1), conn=None)
            hf.sync.publish(Plain(2), conn=None)
        hf.sync.publish(Plain(3), conn=None)
        assert [message.headers for message in stored()] == [
            {"request_id": "r-1", "user_id": "7", "trace_id": "t-1"},
            {"request_id": "r-1", "user_id": "7"},
            {},
        ]

    def test_headers_given_by_hand_win(self, hf: Holdfast, stored: Stored) -> None:
        with correlate(request_id="r-1", user_id="u-1"):
            hf.sync.publish(Plain(1), conn=None, headers={"user_id": "u-2", "tenant": "acme"})
        assert stored()[0].headers == {"request_id": "r-1", "user_id": "u-2", "tenant": "acme"}

    def test_jobs_carry_them_too(self, hf: Holdfast, stored: Stored) -> None:
        @hf.job()
        def send(to: str) -> None: ...

        with correlate(request_id="r-1"):
            send.sync.enqueue("ada")
        assert stored()[0].headers == {"request_id": "r-1"}

    @pytest.mark.parametrize(
        ("headers", "problem"),
        [
            ({"n": 1}, "make it text"),
            ({"": "x"}, "non-empty"),
            ({"x": "a\x00b"}, "NUL"),
            ({f"h{n}": "" for n in range(MAX_HEADERS + 1)}, f"over the limit of {MAX_HEADERS}"),
            ({"x": "y" * MAX_HEADER_BYTES}, "bytes in all, over the limit"),
        ],
        ids=["number", "empty name", "NUL", "too many", "too long"],
    )
    def test_headers_that_cannot_be_stored_are_refused(
        self, hf: Holdfast, headers: dict[str, object], problem: str
    ) -> None:
        with pytest.raises(InvalidPayload, match=problem):
            hf.sync.publish(Plain(1), conn=None, headers=headers)
