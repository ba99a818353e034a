"""Masking what is always secret, and taking out what was declared."""

import re
import time
from collections.abc import Callable
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError, StoreUnavailable
from holdfast.core.redaction.mask import REDACTED, mask, secret_name
from holdfast.core.redaction.redact import Redaction, Redactor, check_redaction, redact_headers, redact_logs, scrub
from holdfast.core.redaction.secrets import MOST_CHARACTERS, MOST_SECRETS, MOST_WORK, Secrets

SAFE = [
    "http://host:8080/users/ada@example.com",
    "unexpected token: foo",
    "Bearer authentication needed",
    "postgresql://ada@host/db",
    "sqlite:///shop.db",
    "https://key@sentry.test/1",
    "connect to 'redis://h:6379/0','ada@example.com'",
    "postgresql://db:5432/shop?user=ada@example.com",
    "postgresql://db:5432,db2:5432/shop and ada@example.com",
    "see (redis://h:6379/0) ada@example.com",
    "hf_total and whsec_ are prefixes",
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
        (f"postgresql://app:{'p' * 600}@db/shop", f"postgresql://app:{REDACTED}@db/shop"),
        ("postgresql://app:se/cr3t@db/shop", f"postgresql://app:{REDACTED}@db/shop"),
        ("postgresql://app:12/34@db/shop", f"postgresql://app:{REDACTED}@db/shop"),
        ("postgresql://app:1234@db/shop", f"postgresql://app:{REDACTED}@db/shop"),
        ("postgresql://app:12,3?4@db/shop", f"postgresql://app:{REDACTED}@db/shop"),
        ("https://app:1234@db/shop", f"https://app:{REDACTED}@db/shop"),
        ("amqp://app:5672/x/y@h:5672/v", f"amqp://app:{REDACTED}@h:5672/v"),
        ("no answer from 'redis://:6379/x@h'", f"no answer from 'redis://:{REDACTED}@h'"),
        ('after "postgresql://app:p@ss w0rd@db/shop" in', f'after "postgresql://app:{REDACTED}@db/shop" in'),
        ("redis://app:pa'ss\"w@h:6379/0", f"redis://app:{REDACTED}@h:6379/0"),
        ("nats://s3cr3t@h:4222,nats://a:b@i", f"nats://{REDACTED}@h:4222,nats://a:{REDACTED}@i"),
        ("amqps://a:b@h1,amqps://c:d@h2", f"amqps://a:{REDACTED}@h1,amqps://c:{REDACTED}@h2"),
        ("{'sasl.username': 'u', 'sasl.password': 'x y'}", f"{{'sasl.username': 'u', 'sasl.password': '{REDACTED}'}}"),
        ("{b'password': b'hunter2'}", f"{{b'password': b'{REDACTED}'}}"),
        ("user: app\npassword: hunter2\n", f"user: app\npassword: {REDACTED}\n"),
        ("token: abcdef0123456789", f"token: {REDACTED}"),
        ("secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw now", f"secret whsec_{REDACTED} now"),
        (f"refused hf_{'aB3-_' * 8}xyz", f"refused hf_{REDACTED}"),
        *((text, text) for text in SAFE),
    ],
)
def test_what_is_always_secret_is_masked_and_the_rest_stays(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert mask(shown) == shown


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
    "unit",
    [
        "a",
        "a-",
        "x://u:",
        "x://u:a@",
        "://",
        "token=",
        "password = '",
        "bearer ",
        'secret":"\\',
        "@",
        "a://",
        '"x://a@',
        "x://u:1/?a?",
        "password: ",
    ],
)
def test_no_text_makes_masking_slow(unit: str) -> None:
    """Eight times the text takes eight times as long, or a little more; a quadratic search takes 64 times as long."""
    assert _seconds(mask, unit * (160_000 // len(unit))) < 30 * max(_seconds(mask, unit * (20_000 // len(unit))), 0.002)


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
def test_a_secret_is_found_in_any_spelling(secret: str, around: str) -> None:
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
    for value in ("1", True, None):
        hide = hide_of(value)
        assert hide is not None
        assert hide("1 True None null") == "1 True None null"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (lambda n: [f"secret-{k:06}" for k in range(n)], lambda n: "secret-" * n),
        (lambda n: ["a" * k + "b" for k in range(5, 5 + n // 10)], lambda n: "a" * (10 * n)),
        (lambda n: [f"{k:03}" for k in range(n)], lambda n: "12 " * n),
        (lambda n: [f"x{k:09}" for k in range(n)], lambda n: "z" * (10 * n)),
    ],
    ids=["alike", "prefixes", "short", "absent"],
)
def test_hiding_many_values_takes_bounded_work(values: Callable[[int], list[str]], text: Callable[[int], str]) -> None:
    """As many values as a payload of hundreds of kilobytes holds, against texts that begin like them everywhere."""
    for n in (300, 3_000):
        hide = hide_of(values(n))
        assert isinstance(hide, Secrets)
        shown = hide(text(n))
        assert hide.work <= MOST_WORK + max(len(value) for value in values(n))
        assert shown in (text(n), REDACTED)


def test_with_too_many_secrets_the_whole_text_is_hidden() -> None:
    for values in ([f"v{n:06}" for n in range(MOST_SECRETS + 2)], ["x" * (MOST_CHARACTERS + 1)]):
        hide = hide_of(values)
        assert hide is not None
        assert hide("some text") == REDACTED


def test_nothing_is_looked_for_before_there_is_a_text() -> None:
    hide = Redactor([Redaction("*", "s")]).hide("a", "no JSON at all" * 100_000)
    assert hide is not None
    assert hide("some text") == "some text"


@given(st.lists(st.text("ab1 -", min_size=0, max_size=7), max_size=6), st.text("ab1 -", max_size=60))
def test_what_is_hidden_is_what_a_search_for_every_value_would_find(values: list[str], text: str) -> None:
    """The longest secret at the leftmost place, short ones only as words: as an alternation of all of them."""
    hide = hide_of(values)
    assert hide is not None
    wanted = {one for value in values if len(value) >= 3 for one in (value, quote(value, safe="-"))}
    parts = [
        re.escape(one) if len(one) >= 5 else rf"(?<!\w){re.escape(one)}(?!\w)"
        for one in sorted(wanted, key=lambda one: (-len(one), one))
    ]
    expected = re.sub("|".join(parts), REDACTED, text) if parts else text
    assert hide(text) == expected


def test_a_log_line_keeps_its_shape() -> None:
    line = {"event": "x", "n": 1, "ok": True, "headers": {"Cookie": "a"}, "url": "http://u:pw@h", "token": None}
    shown = {"event": "x", "n": 1, "ok": True, "headers": {"Cookie": REDACTED}, "url": f"http://u:{REDACTED}@h"}
    assert redact_logs(None, "info", line) == {**shown, "token": None}
    assert scrub({"a": (1, "b")}) == {"a": [1, "b"]}


def test_an_unreachable_store_does_not_tell_its_password() -> None:
    assert "hunter2" not in str(StoreUnavailable("db", "postgresql://u:hunter2@db refused"))


def _seconds(function: Callable[[str], object], text: str) -> float:
    """The least of three: other processes make a measurement longer, never shorter."""

    def once() -> float:
        started = time.process_time()
        function(text)
        return time.process_time() - started

    return min(once() for _ in range(3))
