"""Masking what is always secret, and taking out what was declared."""

import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.core.mask import REDACTED, mask, secret_name
from holdfast.core.redact import Redaction, Redactor, check_redaction, redact_headers, redact_logs, scrub

SAFE = [
    "http://host:8080/users/ada@example.com",
    "unexpected token: foo",
    "Bearer authentication needed",
    "postgresql://ada@host/db",
    "sqlite:///shop.db",
    "connect to host:5432 failed: ada@example.com is unknown",
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/shop", f"postgresql://app:{REDACTED}@db:5432/shop"),
        ("redis://:p%40ss@h:1/0 amqp://a:b@c//", f"redis://:{REDACTED}@h:1/0 amqp://a:{REDACTED}@c//"),
        ("host=db password=hunter2 user=x", f"host=db password={REDACTED} user=x"),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{REDACTED}", "n": 1}}'),
        ("{'client_secret': 'a\\'b'}", f"{{'client_secret': '{REDACTED}'}}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {REDACTED}"),
        ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {REDACTED}"),
        ("sent Bearer eyJhbGciOiJIUzI1", f"sent Bearer {REDACTED}"),
        ("Cookie: sid=abc; theme=dark", f"Cookie: {REDACTED}"),
        ("https://h/p?access_token=zzz&x=1", f"https://h/p?access_token={REDACTED}&x=1"),
        *((text, text) for text in SAFE),
    ],
)
def test_what_is_always_secret_is_masked_and_the_rest_stays(text: str, shown: str) -> None:
    assert mask(text) == shown


@pytest.mark.parametrize(
    "name", ["Authorization", "cookie", "Set-Cookie", "X-API-Key", "x_auth_token", "password", "client_secret"]
)
def test_headers_of_these_names_are_never_shown(name: str) -> None:
    assert secret_name(name)
    assert redact_headers({name: "x", "request_id": "r"}) == {name: REDACTED, "request_id": "r"}


@pytest.mark.parametrize("name", ["request_id", "trace_id", "tenant", "event_type", "traceparent", "idempotency_key"])
def test_correlation_ids_are_shown(name: str) -> None:
    assert not secret_name(name)


@pytest.mark.parametrize(
    "unit", ["a", "a-", "x://u:", "x://u:a@", "://", "token=", "password = '", "bearer ", 'secret":"\\', "@"]
)
def test_no_text_makes_masking_slow(unit: str) -> None:
    text = unit * (50_000 // len(unit))
    started = time.process_time()
    mask(text)
    assert time.process_time() - started < 5  # a quadratic search takes minutes


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("card.number", {"card": {"number": "1", "x": 2}}, {"card": {"number": REDACTED, "x": 2}}),
        ("card", {"card": {"number": "1"}}, {"card": REDACTED}),
        ("items.token", {"items": [{"token": "a"}, {"token": "b"}]}, {"items": [{"token": REDACTED}] * 2}),
        ("*.pin", {"a": {"pin": 1}, "b": 2}, {"a": {"pin": REDACTED}, "b": 2}),
        ("**.pw", {"pw": 1, "a": [{"b": {"pw": 2}}]}, {"pw": REDACTED, "a": [{"b": {"pw": REDACTED}}]}),
        ("a.**.pw", {"pw": 1, "a": {"pw": 2}}, {"pw": 1, "a": {"pw": REDACTED}}),
        ("card", {"card": None}, {"card": None}),
        ("card.number", {"card": "text"}, {"card": "text"}),
    ],
)
def test_paths_lead_to_what_is_secret(path: str, value: object, shown: object) -> None:
    assert Redactor([Redaction("order.*", path)]).value("order.placed", value) == shown
    assert Redactor([Redaction("order.*", path)]).value("mail.sent", value) == value


@pytest.mark.parametrize("path", ["", "a.", ".a", "a..b", "a.**", "**.**.a", 7, "x" * 600])
def test_a_path_that_says_nothing_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="redact"):
        check_redaction("order.placed", path)


@given(secret=st.text(min_size=5), around=st.text())
def test_a_secret_is_found_in_whatever_way_a_text_spells_it(secret: str, around: str) -> None:
    try:
        payload = orjson.dumps({"s": secret}).decode()
    except TypeError:
        return  # half a surrogate pair cannot be stored at all
    hide = Redactor([Redaction("*", "s")]).hide("a", payload)
    assert hide is not None
    for spelled in (secret, repr(secret)[1:-1], ascii(secret)[1:-1], orjson.dumps(secret).decode()[1:-1]):
        assert hide(f"<{spelled}>") == f"<{REDACTED}>"


def hide_of(value: object) -> Callable[[str], str] | None:
    return Redactor([Redaction("*", "s")]).hide("a", orjson.dumps({"s": value}).decode())


def test_short_secrets_are_hidden_as_words_and_the_shortest_not_at_all() -> None:
    hide = hide_of("123")
    assert hide is not None
    assert hide("cvv 123, order 51234") == f"cvv {REDACTED}, order 51234"
    assert hide_of("1") is None
    assert hide_of(True) is None
    assert hide_of(None) is None


def test_a_log_line_keeps_its_shape() -> None:
    line = {"event": "x", "n": 1, "ok": True, "headers": {"Cookie": "a"}, "url": "http://u:pw@h", "token": None}
    shown = {"event": "x", "n": 1, "ok": True, "headers": {"Cookie": REDACTED}, "url": f"http://u:{REDACTED}@h"}
    assert redact_logs(None, "info", line) == {**shown, "token": None}
    assert scrub({"a": (1, "b")}) == {"a": [1, "b"]}


def test_an_unreachable_store_does_not_tell_its_password() -> None:
    assert "hunter2" not in str(StoreUnavailable("db", "postgresql://u:hunter2@db refused"))
