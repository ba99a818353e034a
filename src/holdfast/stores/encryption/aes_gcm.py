"""AES-256 in GCM: keys by id, one of which encrypts; the others only decrypt. Needs `holdfast[cipher]`."""

import base64
import difflib
import os
from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.names import check_name

_KEY_BYTES = 32
_NONCE_BYTES = 12
_REMEDY = "make one with AesGcm.new_key() and keep it in a secret store"


class AesGcm:
    """Encrypts with the key `current` and decrypts with any of `keys`, a dict from key ids to 32 bytes or their base64 text.

    The id of a key is stored, readable, with everything that it encrypts. With one key, `current` may be left out.

    Examples:
        >>> cipher = AesGcm(keys={"2026-11": AesGcm.new_key()})
    """

    def __init__(self, keys: Mapping[str, str | bytes], current: str | None = None) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError(
                "AesGcm needs the package cryptography; run `pip install 'holdfast[cipher]'`"
            ) from error
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigurationError(
                f"keys is of type {type(keys).__name__}; give a dict from key ids to keys, with at least one"
            )
        self._keys: dict[str, Any] = {
            check_name("encryption key", id): AESGCM(_key(id, value)) for id, value in keys.items()
        }
        if current is None:
            if len(keys) > 1:
                raise ConfigurationError(
                    f"there are {len(keys)} keys; name the one that encrypts, such as current={next(iter(keys))!r}"
                )
            (current,) = keys
        if current not in self._keys:
            near = difflib.get_close_matches(str(current), self._keys, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(self._keys)}"
            raise ConfigurationError(f"current is {current!r}, and keys has no such id{hint}")
        self.current = current
        self._invalid_tag: type[Exception] = InvalidTag

    @staticmethod
    def new_key() -> str:
        """A new random key as base64 text."""
        return base64.b64encode(os.urandom(_KEY_BYTES)).decode()

    def encrypt(self, data: bytes, place: bytes) -> tuple[str, bytes]:
        nonce = os.urandom(_NONCE_BYTES)
        return self.current, nonce + self._keys[self.current].encrypt(nonce, data, place)

    def decrypt(self, key: str, data: bytes, place: bytes) -> bytes:
        try:
            found: bytes = self._keys[key].decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place)
        except self._invalid_tag:
            raise ValueError("the data was not encrypted with this key for this row") from None
        return found

    def __repr__(self) -> str:
        return f"AesGcm(keys=<{', '.join(self._keys)}>, current={self.current!r})"


def _key(id: object, value: object) -> bytes:
    """The bytes of a key; no error contains them."""
    if isinstance(value, str):
        try:
            value = base64.b64decode("".join(value.split()).replace("-", "+").replace("_", "/"), validate=True)
        except ValueError:
            raise ConfigurationError(f"encryption key {id!r} is not base64; {_REMEDY}") from None
    if not isinstance(value, bytes):
        raise ConfigurationError(
            f"encryption key {id!r} is of type {type(value).__name__}; give {_KEY_BYTES} bytes or their base64 text"
        )
    if len(value) != _KEY_BYTES:
        raise ConfigurationError(
            f"encryption key {id!r} has {len(value)} bytes, and AES-256 needs {_KEY_BYTES}; {_REMEDY}"
        )
    return value
