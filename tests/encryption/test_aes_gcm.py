"""The cipher: declarations that it refuses, and what it detects."""

import base64
import os
import pickle
from dataclasses import dataclass

import pytest

from holdfast import ConfigurationError, DecryptionFailed, EncryptionKeyMissing, Holdfast, InvalidName
from holdfast.cipher import AesGcm
from holdfast.core.encryption import check_decrypted, decrypt, encrypt, encrypted_value
from holdfast.core.events.event import event, event_type
from holdfast.core.events.payload import decode

KEY = base64.b64encode(bytes(range(32))).decode()
"""Not random: it is part of the names of tests, which must be the same in every process."""


@pytest.mark.parametrize(
    ("keys", "current", "problem"),
    [
        ({}, None, "at least one"),
        (KEY, None, "keys is of type str"),
        ({"a": KEY, "b": KEY}, None, "name the one that encrypts"),
        ({"2026-11": KEY}, "2026-1", "did you mean '2026-11'"),
        ({"2026-11": KEY}, "zzz", "it has 2026-11"),
        ({"a": base64.b64encode(b"x" * 16).decode()}, None, "has 16 bytes, and AES-256 needs 32"),
        ({"a": b"x" * 33}, None, "has 33 bytes"),
        ({"a": "not base64!"}, None, "is not base64"),
        ({"a": 7}, None, "is of type int"),
    ],
)
def test_a_wrong_declaration_is_refused_without_its_keys(
    keys: dict[str, str], current: str | None, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        AesGcm(keys, current)
    assert KEY not in str(refused.value)


def test_a_key_is_bytes_or_base64_text_and_its_id_is_a_name() -> None:
    raw = os.urandom(32)
    plain, url = base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()
    for given in (raw, plain, url, f" {plain}\n"):
        cipher = AesGcm({"2026.11": given})
        assert decrypt(cipher, encrypt(AesGcm({"2026.11": raw}), b"x", ("p",)), ("p",)) == b"x"
        assert plain not in repr(cipher)
    with pytest.raises(InvalidName):
        AesGcm({"a b": raw})


@pytest.mark.parametrize("cipher", [KEY, AesGcm, object()])
def test_an_app_takes_only_a_cipher(cipher: object) -> None:
    with pytest.raises(ConfigurationError, match="cipher is") as refused:
        Holdfast("sqlite:///x.db", cipher=cipher)  # type: ignore[arg-type]
    assert KEY not in str(refused.value)


def test_a_value_is_bound_to_its_place_and_to_every_byte() -> None:
    cipher, place = AesGcm({"k": KEY}), ("message", "1")
    text = encrypt(cipher, b"secret", place)
    assert decrypt(cipher, text, place) == b"secret"
    assert text != encrypt(cipher, b"secret", place), "each value has its own nonce"
    found = encrypted_value(text)
    assert found is not None
    changed = bytearray(base64.b64decode(found.data))
    changed[-1] ^= 1
    other = text.replace(found.data, base64.b64encode(changed).decode())
    for given, at in (
        (text, ("message", "2")),
        (text, ("message", "1", "")),
        (other, place),
        (text.replace(found.data, "AAAA"), place),
    ):
        refused = decrypt(cipher, given, at)
        assert isinstance(refused, str)
        with pytest.raises(DecryptionFailed, match=f"{' '.join(at)} cannot be decrypted with key 'k'"):
            check_decrypted(refused)
    assert decrypt(AesGcm({"k2": KEY}), text, place) == text
    with pytest.raises(EncryptionKeyMissing, match="key 'k'"):
        decode(text)


def test_the_place_has_no_two_readings() -> None:
    cipher = AesGcm({"k": KEY})
    assert isinstance(decrypt(cipher, encrypt(cipher, b"x", ("response", "a b", "c")), ("response", "a", "b c")), str)


def test_only_the_exact_form_is_an_encrypted_value() -> None:
    for text in (
        '{"$encrypted": 1}',
        '{"$encrypted": {"key": "a"}}',
        '{"$encrypted": {"key": 1, "data": "x"}}',
        '{"$encrypted"',
    ):
        assert encrypted_value(text) is None
    two = '{"$encrypted": {"key": "a", "data": "b"}, "b": 1}'
    assert encrypted_value(two) is None
    assert decode(two) == {"$encrypted": {"key": "a", "data": "b"}, "b": 1}


def test_an_event_class_refuses_a_value_that_is_still_encrypted() -> None:
    @event("thing.done")
    @dataclass
    class Done:
        n: int = 0

    with pytest.raises(EncryptionKeyMissing):
        event_type(Done).read('{"$encrypted": {"key": "a", "data": "b"}}', 1)


def test_the_errors_survive_pickling() -> None:
    for error in (EncryptionKeyMissing("a"), DecryptionFailed("a", "message 1")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
