"""Limits, rates and keys as values: what they accept, what they refuse, and the key of a message."""

from datetime import timedelta

import pytest

from holdfast import ConfigurationError, Limit, Queue, Rate
from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.flow import KeyRule, bounded_key, key_rule, stored_flow


@pytest.mark.parametrize(
    ("text", "count", "window"),
    [
        ("90/10s", 90, timedelta(seconds=10)),
        (" 5 / 1m ", 5, timedelta(minutes=1)),
        ("3/h", 3, timedelta(hours=1)),
        ("1/500ms", 1, timedelta(milliseconds=500)),
    ],
)
def test_a_rate_is_a_count_and_a_window(text: str, count: int, window: timedelta) -> None:
    assert (Rate(text).count, Rate(text).window) == (count, window)


@pytest.mark.parametrize("text", ["", "90", "/10s", "0/10s", "90/0s", "90/x", "-1/s", "1.5/s", "9/10ms", 90])
def test_a_rate_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=r"rate|window"):
        Rate(text)


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "10", None])
def test_a_limit_is_a_whole_number_from_one(number: int) -> None:
    with pytest.raises(ConfigurationError, match=r"such as Limit\(10\)"):
        Limit(number)


def test_a_plain_number_names_the_class_and_its_import() -> None:
    with pytest.raises(
        ConfigurationError, match=r"queue mail: limit is 5; give Limit\(10\), after `from holdfast import"
    ):
        Queue("mail", limit=5)  # type: ignore[arg-type]


def test_a_queue_has_no_keys() -> None:
    assert Queue("mail", limit=Limit(3)).flow is not None
    with pytest.raises(ConfigurationError, match="a queue has no keys"):
        Queue("mail", limit=Limit(3, by="tenant"))


@pytest.mark.parametrize("by", ["", "a..b", ".a", "a b", "header:", 7])
def test_a_key_that_names_nothing_is_refused(by: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write|give"):
        key_rule("limit", by)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (key_rule("by", "tenant"), "7"),
        (key_rule("by", "customer.id"), "c1"),
        (key_rule("by", "customer.name"), ""),
        (key_rule("by", "tenant.deeper"), ""),
        (key_rule("by", "paid"), "true"),
        (key_rule("by", "nothing"), ""),
        (key_rule("by", "header:tenant"), "acme"),
        (key_rule("by", "header:other"), ""),
        (key_rule("by", lambda payload: payload["tenant"] % 2), "1"),
    ],
)
def test_the_key_of_a_message(rule: KeyRule, key: str) -> None:
    payload = '{"tenant": 7, "customer": {"id": "c1"}, "paid": true, "nothing": null}'
    assert rule.key(payload, {"tenant": "acme"}) == key


def test_a_long_or_unprintable_key_is_hashed() -> None:
    assert bounded_key("x" * 200) == "x" * 200
    assert bounded_key("x" * 201) != bounded_key("x" * 202)
    assert bounded_key("é" * 101).startswith("hash:")
    assert bounded_key("a\x00b").startswith("hash:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 10}, r"give Limit\(10\)"),
        ({"rate": "90/10s"}, r"give Rate\('90/10s'\)"),
        ({"limit": Limit(2, by="a"), "rate": Rate("1/s", by="b")}, "a consumer has one key"),
        ({"limit": Limit(2, by="a"), "order_by": "a"}, "one delivery of a key at a time"),
        ({"order_by": "a", "on_dead": "blok"}, "did you mean 'block'"),
        ({"on_dead": "skip"}, "give order_by= as well"),
        ({"order_by": "a", "fair_by": "a"}, "cannot be combined"),
        ({"by": "a"}, r"Limit\(2, by='tenant_id'\)"),
        ({"max_wait": "1m"}, "give debounce="),
        ({"debounce": "1m", "max_wait": "1s"}, "shorter than debounce"),
        ({"debounce": "0s"}, "above zero"),
        ({"batch": 10, "order_by": "a"}, "cannot be combined"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        flow_settings(options)


def test_settings_survive_their_stored_form() -> None:
    given = flow_settings({"limit": Limit(2, by="a.b"), "rate": Rate("90/10s", by="a.b"), "fair_by": "a.b"})
    assert given is not None
    assert stored_flow(given.text) == given
    assert flow_settings({"name": "mail"}) is None


def test_an_operator_overrides_only_what_is_declared() -> None:
    given = flow_settings({"limit": Limit(2)})
    assert given is not None
    assert given.overridden('{"limit": 5, "rate": [1, 1.0]}').limit == 5
    assert given.overridden('{"limit": 5, "rate": [1, 1.0]}').rate_count is None
