"""Encrypted values: JSON text that names its key, so that it fits into every column and is recognized without the key.

::

    {"$encrypted": {"key": "2026-11", "data": "<base64>"}}

A value that was changed or copied from another row is read with a third member, `refused`, that names its row.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import orjson

from holdfast.core.errors import ConfigurationError, DecryptionFailed, EncryptionKeyMissing

_MEMBER = "$encrypted"
ENCRYPTED_START = '{"$encrypted"'


class Cipher(Protocol):
    """Encrypts values. `place` names the row of a value: decryption with another place must fail."""

    def encrypt(self, data: bytes, place: bytes) -> tuple[str, bytes]:
        """Returns the id of the key that it used, and the encrypted data."""
        ...

    def decrypt(self, key: str, data: bytes, place: bytes) -> bytes:
        """Raises `ValueError` for data that was not encrypted for this place. Any other error counts as a missing key."""
        ...


class EncryptedValue(NamedTuple):
    """The id of the key, and the data in base64. `refused` is the row that it was read from, if decryption failed."""

    key: str
    data: str
    refused: str | None = None


def check_cipher(cipher: object) -> None:
    """Raises `ConfigurationError` if `cipher` is not None and lacks `encrypt` or `decrypt`."""
    if cipher is None or (
        not isinstance(cipher, type)
        and callable(getattr(cipher, "encrypt", None))
        and callable(getattr(cipher, "decrypt", None))
    ):
        return
    # Not its repr: it may be a key.
    what = f"the class {cipher.__name__}" if isinstance(cipher, type) else f"a {type(cipher).__name__}"
    raise ConfigurationError(
        f"cipher is {what}; give AesGcm(keys={{...}}) of holdfast.cipher, or an object with the methods encrypt and decrypt"
    )


def encrypt(cipher: Cipher, data: bytes, place: tuple[str, ...]) -> str:
    """The encrypted value as JSON text."""
    key, encrypted = cipher.encrypt(data, orjson.dumps(place))
    return _text(EncryptedValue(key, base64.b64encode(encrypted).decode()))


def decrypt(cipher: Cipher, text: str, place: tuple[str, ...]) -> bytes | str:
    """The bytes of an encrypted value. Any other text is returned as it is, and so is a value that cannot be decrypted."""
    found = encrypted_value(text)
    if found is None:
        return text
    try:
        return cipher.decrypt(found.key, base64.b64decode(found.data, validate=True), orjson.dumps(place))
    except ValueError:
        return _text(found._replace(refused=" ".join(place)))
    except Exception:  # noqa: BLE001
        # One value must not stop the claim of others; its delivery waits for a worker that can decrypt it.
        return text


def encrypted_value(text: str) -> EncryptedValue | None:
    """The encrypted value that a text contains; None for any other text."""
    if not text.startswith(ENCRYPTED_START):
        return None
    try:
        return read_encrypted(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


def read_encrypted(value: object) -> EncryptedValue | None:
    """The encrypted value of a decoded text; None for any other value."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    inner = value.get(_MEMBER)
    if not isinstance(inner, Mapping) or not all(isinstance(one, str) for one in inner.values()):
        return None
    return EncryptedValue(**inner) if {"key", "data"} <= inner.keys() <= {"key", "data", "refused"} else None


def check_decrypted(text: str) -> None:
    """Raises for an encrypted value: `DecryptionFailed`, or `EncryptionKeyMissing` if it was not refused."""
    if (found := encrypted_value(text)) is not None:
        raise unreadable(found)


def unreadable(found: EncryptedValue) -> EncryptionKeyMissing | DecryptionFailed:
    """The error for a value that is read and was not decrypted."""
    return EncryptionKeyMissing(found.key) if found.refused is None else DecryptionFailed(found.key, found.refused)


def _text(value: EncryptedValue) -> str:
    inner = {name: one for name, one in value._asdict().items() if one is not None}
    return orjson.dumps({_MEMBER: inner}).decode()
