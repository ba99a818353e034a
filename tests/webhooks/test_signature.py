"""Signatures: what we sign others verify, what others sign we verify, and nothing else passes."""

import base64
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
import standardwebhooks
import svix
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ConfigurationError, InvalidSignature
from holdfast.outbound.webhooks.signature import check_secret, new_secret, sign, verify

BODY = b'{"type":"order.placed","data":{"id":1,"name":"\xc3\xa9"}}'
NOW = 1_700_000_000


def headers(*secrets: str, body: bytes = BODY, at: int = NOW, id: str = "m-1") -> dict[str, str]:
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": sign(secrets, id, at, body)}


def accepted(secret: Any, given: dict[str, str] | None = None, body: bytes | str = BODY, **options: Any) -> bool:
    try:
        verify(body, given or headers(secret), secret, **{"now": NOW} | options)
    except InvalidSignature:
        return False
    return True


@pytest.mark.parametrize("library", [standardwebhooks.Webhook, svix.Webhook])
@pytest.mark.parametrize("position", [0, 1])
def test_what_is_signed_verifies_with_the_libraries_of_receivers(library: Any, position: int) -> None:
    secrets = [new_secret(), new_secret()]
    now = int(datetime.now(UTC).timestamp())
    library(secrets[position]).verify(BODY, headers(*secrets, at=now))
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        library(new_secret()).verify(BODY, headers(*secrets, at=now))


def test_what_the_reference_library_signs_is_accepted() -> None:
    secret = new_secret()
    signature = standardwebhooks.Webhook(secret).sign("m-1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    given = {"Webhook-Id": "m-1", "Webhook-Timestamp": str(NOW), "Webhook-Signature": signature}
    assert verify(BODY, given, secret, now=NOW)["data"]["id"] == 1


@given(st.dictionaries(st.text(), st.integers(-(2**53), 2**53)), st.text(st.characters(codec="ascii"), min_size=1))
def test_every_body_and_id_verifies(data: dict[str, int], id: str) -> None:
    secret, body = new_secret(), orjson.dumps(data)
    assert verify(body, headers(secret, body=body, id=id), secret, now=NOW) == data


def test_either_of_two_secrets_may_have_signed() -> None:
    old, new, other = new_secret(), new_secret(), new_secret()
    assert accepted([new, old], headers(old))
    assert accepted([new, old], headers(new))
    assert accepted(old, headers(new, old))
    assert not accepted([new, old], headers(other))
    assert not accepted([], headers(new))


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "m-2"},
        {"webhook-timestamp": str(NOW + 1)},
        {"webhook-signature": "v1," + base64.b64encode(b"x" * 32).decode()},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v2,abc"},
        {"webhook-signature": "garbage \x00 v1"},
        {"webhook-timestamp": "1_700_000_000"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "-5"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-id": ""},
        {"webhook-signature": ""},
    ],
)
def test_a_changed_request_is_refused(changed: dict[str, str]) -> None:
    secret = new_secret()
    assert accepted(secret)
    assert not accepted(secret, headers(secret) | changed)


def test_another_body_is_refused() -> None:
    secret = new_secret()
    assert not accepted(secret, body=BODY + b" ", given=headers(secret))
    assert accepted(secret, body=BODY.decode(), given=headers(secret))


@pytest.mark.parametrize(("age", "fine"), [(299, True), (301, False), (-299, True), (-301, False)])
def test_what_is_too_old_or_ahead_of_the_clock_is_refused(age: int, fine: bool) -> None:
    secret = new_secret()
    assert accepted(secret, headers(secret, at=NOW - age)) is fine
    assert accepted(secret, headers(secret, at=NOW - age), tolerance="1h")


def test_a_signature_of_an_unknown_version_does_not_hide_a_good_one() -> None:
    secret = new_secret()
    good = headers(secret)
    assert accepted(secret, good | {"webhook-signature": f"v1a,zzz v2,== {good['webhook-signature']}"})


def test_a_body_that_is_no_json_is_refused_although_it_was_signed() -> None:
    secret = new_secret()
    assert not accepted(secret, headers(secret, body=b"{"), body=b"{")


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!", "whsec_" + "A" * 8, "whsec_" + "A" * 200, "plain text", None]
)
def test_what_is_no_secret_is_refused_without_being_shown(secret: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_secret(secret)
    assert not secret or len(secret) < 8 or secret not in str(refused.value)


def test_an_empty_secret_verifies_nothing() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        accepted("whsec_", headers(new_secret()))
