"""Payloads come out as they went in, or are refused with the path at fault (FAULTS 37, 38)."""

import dataclasses
import enum
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple, TypedDict
from uuid import UUID

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidPayload, PayloadTooLarge
from holdfast.core.events.payload import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_REQUEST_ID_BYTES,
    check_headers,
    decode,
    encode,
    encode_many,
    same,
)
from holdfast.core.events.payload_errors import MAX_DEPTH, holds_nan

NAN, INF = float("nan"), float("inf")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.Enum):
    LOW = 1
    BROKEN = NAN
    HOLLOW = "x\x00"


@dataclasses.dataclass
class Line:
    sku: str
    price: object = None
    _note: str = "kept"


@dataclasses.dataclass(slots=True)
class Node:
    child: object = None


class Order(TypedDict):
    id: int


class Point(NamedTuple):
    x: int
    y: float


class Metres(float):
    pass


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    order_id: int = pydantic.Field(alias="orderId")
    price: object = None
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @pydantic.computed_field
    def doubled(self) -> int:
        return self.order_id * 2


class Loose(pydantic.BaseModel):
    price: object = None
    bag: set[object] = set()
    wait: timedelta | None = None


class Roots(pydantic.RootModel[list[float]]):
    pass


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Stubborn(pydantic.BaseModel):
    @pydantic.model_serializer
    def refuse(self) -> dict[str, int]:
        raise RuntimeError("not today")


class JsonOnly(pydantic.BaseModel):
    none: None = None

    @pydantic.model_serializer
    def write(self, info: pydantic.SerializationInfo) -> dict[str, None]:
        if info.mode != "json":
            raise RuntimeError("JSON only")
        return {"none": None}


def nested(depth: int) -> object:
    value: object = []
    for _ in range(depth - 1):
        value = [value]
    return value


def chain(depth: int) -> object:
    value = Node()
    for _ in range(depth - 1):
        value = Node(value)
    return value


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ([], "[]"),
        (None, "null"),
        (True, "true"),
        ("ä", '"ä"'),
        ((1, 2), "[1,2]"),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
        (Line("x", 2), '{"_note":"kept","price":2,"sku":"x"}'),
        (Order(id=3), '{"id":3}'),
        (Point(1, 2.5), "[1,2.5]"),
        (Metres(2.5), "2.5"),
        (Colour.RED, '"red"'),
        (Level.LOW, "1"),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), '"2026-01-02T03:00:00+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (OrderedDict(b=None, a=(None,)), '{"a":[null],"b":null}'),
        (Model(orderId=7), '{"at":"2026-01-01T00:00:00Z","orderId":7,"price":null}'),
        ({"lines": [Line("x", Model(orderId=1, price=None))]}, None),
        ({"note": "\\u0000 is only text", "none": None}, None),
        ({"null": 1.5}, None),
        (Loose(bag={1.5, "a"}, wait=timedelta(1)), None),
        (Roots([1.5]), "[1.5]"),
        (JsonOnly(), '{"none":null}'),
        (Line("x", [Colour.RED, Level.LOW, Decimal(1), UUID(int=1), date(2026, 1, 2), None]), None),
    ],
)
def test_what_people_send_is_written(payload: object, text: str | None) -> None:
    written = encode(payload)
    assert text is None or written == text
    assert orjson.loads(written) is not None or payload is None


def test_a_model_comes_back_as_the_same_model() -> None:
    model = Model(orderId=7)
    assert Model.model_validate(decode(encode(model))) == model


@dataclasses.dataclass
class Defaults:
    price: float = NAN


class AnyRoot(pydantic.RootModel[object]):
    pass


REFUSED = [
    ([[1], {"b": {}}, {"a": NAN}], "$[2].a", "nan"),
    (Loose(price=Level.BROKEN), "$.price", "nan"),
    (AnyRoot([1.5, NAN]), "$[1]", "nan"),
    (AnyRoot(NAN), "$", "nan"),
    ({"a": Defaults}, "$.a", "type"),
    ({"items": [0, 1, 2, {"price": NAN}]}, "$.items[3].price", "nan"),
    ({"a": INF}, "$.a", "inf"),
    ([-INF], "$[0]", "-inf"),
    (NAN, "$", "nan"),
    ({"a": Metres(NAN)}, "$.a", "nan"),
    ({"a": (1, NAN)}, "$.a[1]", "nan"),
    ({"a": Level.BROKEN}, "$.a", "nan"),
    ({"a": Level.HOLLOW}, "$.a", "NUL"),
    ({"a": Line("x", NAN)}, "$.a.price", "nan"),
    ({"a": Model(orderId=1, price=NAN)}, "$.a.price", "nan"),
    ({"a": Model(orderId=1, price=[{"b": NAN}])}, "$.a.price[0].b", "nan"),
    (Line("x", Loose(price=NAN, bag={NAN}, wait=timedelta(1))), "$.price.price", "nan"),
    (Loose(bag={NAN}), "$.bag[0]", "nan"),
    (Roots([1.5, NAN]), "$[1]", "nan"),
    ({"a": Point(1, NAN)}, "$.a[1]", "nan"),
    ({"a": OrderedDict(b=MappingProxyType({"c": NAN}))}, "$.a.b.c", "nan"),
    ({"a": Decimal("NaN")}, "$.a", "NaN"),
    ({"a": Decimal("Infinity")}, "$.a", "Infinity"),
    ({"a": ["ok", "x\x00y"]}, "$.a[1]", "NUL"),
    ({"x\x00y": 1}, "$", "NUL"),
    ({"a": {"b": "\ud800"}}, "$.a.b", "surrogate"),
    ({"a": "\udfff"}, "$.a", "surrogate"),
    ({"\ud83d": 1}, "$", "surrogate"),
    ({"a": Line("\ud800")}, "$.a.sku", "surrogate"),
    ({"a": 2**64}, "$.a", "64 bits"),
    ({"a": -(2**63) - 1}, "$.a", "64 bits"),
    ({"a": 10**5000}, "$.a", "64 bits"),
    ({"a": {1: "x"}}, "$.a", "'1' of type int"),
    ({None: "x"}, "$", "NoneType"),
    ({"a": {Colour.RED: 1}}, "$.a", "Colour"),
    ({"a": b"x"}, "$.a", "base64"),
    ({"a": {1, 2}}, "$.a", "sorted list"),
    ({"a": object()}, "$.a", "object"),
    ({"a": Line}, "$.a", "type"),
    ({"a": Stubborn()}, "$.a", "not today"),
    ({"odd key": [object()]}, "$['odd key'][0]", "object"),
]


@pytest.mark.parametrize(("payload", "path", "problem"), REFUSED)
def test_what_would_be_lost_is_refused_with_its_path(payload: object, path: str, problem: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode(payload)
    assert caught.value.path == path
    assert problem in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize("build", [nested, chain])
def test_nesting_up_to_the_limit_is_written(build) -> None:
    encode(build(MAX_DEPTH))
    # A null inside makes the payload walked as well: the two must agree on the limit.
    encode({"deep": build(MAX_DEPTH - 1), "none": None})


@pytest.mark.parametrize("build", [nested, chain])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1_000, 10_000])
def test_nesting_beyond_the_limit_is_refused_without_a_recursion_error(build, depth: int) -> None:
    with pytest.raises(InvalidPayload, match="nested deeper") as caught:
        encode({"deep": build(depth)} if depth > 1_000 else build(depth))
    assert len(caught.value.path) < 500


def test_a_fault_at_the_limit_is_named_for_what_it_is() -> None:
    value: object = [NAN]
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    with pytest.raises(InvalidPayload, match="nan is not JSON"):
        encode(value)


def test_text_that_looks_like_an_escape_keeps_nothing_else_from_being_written() -> None:
    innocent = {
        "note": "\\u0000",
        "price": 1.5,
        "low": -(2**63),
        "high": 2**64 - 1,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "id": UUID(int=1),
        "none": None,
    }
    assert encode(innocent).startswith('{"at":')


@pytest.mark.parametrize(
    "payload", [{"a": 1.5, "b": [None, "x", 1, True]}, [Line, Defaults], Loose(price=1.5), (1,), Colour.RED]
)
def test_a_payload_without_nan_holds_none(payload: object) -> None:
    assert not holds_nan(payload)


def test_a_payload_that_cannot_make_up_its_mind_is_refused() -> None:
    class Flaky:
        calls = 0

        def model_dump(self, **options: object) -> dict[str, int]:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("not the first time")
            return {}

    with pytest.raises(InvalidPayload, match="not the first time") as caught:
        encode(Flaky())
    assert caught.value.path == "$"


def test_a_model_nested_too_deep_is_refused() -> None:
    class Tree(pydantic.BaseModel):
        below: object = None

    tree = Tree()
    for _ in range(2_000):
        tree = Tree.model_construct(below=tree)
    with pytest.raises(InvalidPayload):
        encode(tree)


def test_a_payload_that_contains_itself_is_refused() -> None:
    circle: dict[str, object] = {}
    circle["self"] = [circle, circle]
    with pytest.raises(InvalidPayload, match="contains itself"):
        encode(circle)


@pytest.mark.parametrize("size", [1_048_577, 64_000_000, pytest.param(300_000_000, marks=pytest.mark.soak)])
def test_a_large_payload_is_refused_and_not_repeated(size: int) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        encode({"blob": "x" * size})
    assert caught.value.size > size
    assert caught.value.limit == 1_048_576
    assert len(str(caught.value)) < 200


def test_the_limit_counts_bytes_and_is_inclusive() -> None:
    assert encode("ä" * 4, max_bytes=10) == '"ääää"'
    with pytest.raises(PayloadTooLarge):
        encode("ä" * 4, max_bytes=9)


def test_a_refusal_does_not_quote_the_payload() -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode({"password": "hunter2\x00"})
    assert "hunter2" not in str(caught.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=1)), inner),
    max_leaves=20,
)
any_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(json_values)
def test_json_values_survive_the_round_trip(value: object) -> None:
    text = encode(value)
    assert decode(text) == value
    assert encode(decode(text)) == text


@given(any_values)
def test_anything_is_written_without_loss_or_refused_with_the_typed_error(value: object) -> None:
    try:
        text = encode(value)
    except InvalidPayload as exc:
        text = f"{exc.path} {exc}"
        assert text.startswith("$")
    assert "\\u0000" not in text or "\\\\u0000" in text
    text.encode()


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", '{"a":1,}', '"\\ud800"', "[" * 5_000 + "]" * 5_000, b'"\xff"', b"\x00", '"\ud800"', "1e400"],
)
def test_what_is_not_json_is_refused_on_reading(text) -> None:
    with pytest.raises(InvalidPayload, match=r"is not JSON|is not UTF-8"):
        decode(text)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ('{"a":1,"b":2}', '{"b": 2, "a": 1}', True),
        ("1", "1.0", True),
        ("1e2", "100", True),
        ("0", "-0.0", True),
        ('"é"', '"\\u00e9"', True),
        ("[1,2]", "[2,1]", False),
        ("[1]", "[1,1]", False),
        ('{"a":1}', '{"a":1,"b":null}', False),
        ("1", "true", False),
        ('{"a":[0]}', '{"a":[false]}', False),
        ("null", "false", False),
        ("[]", "{}", False),
        ('"1"', "1", False),
        ("9007199254740993", "9007199254740992.0", False),
    ],
)
def test_two_texts_are_the_same_if_their_values_are(a: str, b: str, expected: bool) -> None:
    assert same(a, b) is expected
    assert same(b, a) is expected


@given(json_values)
def test_a_payload_is_the_same_after_its_keys_were_reordered(value: object) -> None:
    text = encode(value)
    assert same(text, orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2))


def test_comparing_deep_texts_needs_no_recursion() -> None:
    deep = "[" * 1_000 + "]" * 1_000
    assert same(deep, f" {deep}")


def test_headers_are_returned_as_a_plain_dict() -> None:
    assert check_headers(MappingProxyType({"x-request-id": "7", "note": "é"})) == {"x-request-id": "7", "note": "é"}


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"a": 1}, "headers.a: is of type int"),
        ({"a": None}, "headers.a: is of type NoneType"),
        ({"a": "x\x00"}, "headers.a: contains"),
        ({"a": "\ud800"}, "headers.a: contains"),
        ({"a\x00": "x"}, "name"),
        ({"": "x"}, "name"),
        ({1: "x"}, "name"),
        ({Unprintable(): "x"}, "cannot be"),
        ({str(n): "" for n in range(MAX_HEADERS + 1)}, "65 headers"),
        ({"a": "é" * (MAX_HEADER_BYTES // 2)}, "16,385 bytes"),
        ({"request_id": "é" * (MAX_REQUEST_ID_BYTES // 2 + 1)}, "headers.request_id: 1,002 bytes, over .* shorter id"),
    ],
)
def test_headers_out_of_bounds_are_refused(headers, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem):
        check_headers(headers)


def test_headers_at_their_bounds_are_accepted() -> None:
    assert check_headers({"a": "x" * (MAX_HEADER_BYTES - 1)})
    assert len(check_headers({str(n): "" for n in range(MAX_HEADERS)})) == MAX_HEADERS
    assert check_headers({"request_id": "x" * MAX_REQUEST_ID_BYTES})


def test_nan_is_not_mistaken_for_null() -> None:
    assert math.isnan(NAN)
    assert encode({"a": None, "b": 1.5}) == '{"a":null,"b":1.5}'


def test_the_form_of_an_encrypted_value_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="form of an encrypted value"):
        encode({"$encrypted": {"key": "a", "data": "aGk="}})
    assert decode(encode({"$encrypted": {"key": "a"}})) == {"$encrypted": {"key": "a"}}


def outcome(write) -> object:
    try:
        return write()
    except (InvalidPayload, PayloadTooLarge) as error:
        return type(error), str(error)


@given(st.lists(any_values, min_size=1, max_size=6), st.integers(1, 200))
def test_many_payloads_are_written_like_each_alone_or_the_first_invalid_one_is_refused(
    payloads: list[object], limit: int
) -> None:
    alone = outcome(lambda: [encode(payload, max_bytes=limit) for payload in payloads])
    assert outcome(lambda: encode_many(payloads, "b5d1f0c7", max_bytes=limit)) == alone


@pytest.mark.parametrize(
    "invalid", [NAN, {"a": [INF]}, "a\x00b", {"$encrypted": {"key": "k", "data": "d"}}, "x" * 60, {1, 2}, "\ud800"]
)
def test_one_invalid_payload_among_many_is_refused_like_alone(invalid: object) -> None:
    alone = outcome(lambda: encode(invalid, max_bytes=50))
    assert outcome(lambda: encode_many([None, {"a": None}, invalid, []], "b5d1f0c7", max_bytes=50)) == alone


def test_many_payloads_may_be_as_deep_as_one() -> None:
    deepest = nested(MAX_DEPTH)
    assert encode_many([deepest, 1], "b5d1f0c7") == [encode(deepest), "1"]
