"""Signatures by the Standard Webhooks specification: made by the sender, verified by the receiver."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from holdfast.core.errors import ConfigurationError, InvalidSignature
from holdfast.core.values.duration import Duration, to_timedelta

_PREFIX = "whsec_"
_NEW_BYTES = 32
_LEAST_BYTES, _MOST_BYTES = 24, 64
_MOST_SIGNATURES = 20


def new_secret() -> str:
    """Return a new random secret in the Standard Webhooks format."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def check_secret(secret: str) -> str:
    """Return `secret` if it is valid: ``whsec_`` and 24 to 64 bytes in base64. The error never contains it."""
    try:
        size = len(_key(secret))
    except (binascii.Error, ValueError, AttributeError):
        size = 0
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        raise ConfigurationError(
            f"a webhook secret is {_PREFIX} followed by {_LEAST_BYTES} to {_MOST_BYTES} bytes in base64; omit it to "
            "generate one"
        )
    return secret


def sign(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> str:
    """The ``webhook-signature`` header: one signature for each secret, so that a receiver can rotate its secret."""
    content = f"{id}.{timestamp}.".encode() + body
    return " ".join(f"v1,{base64.b64encode(_mac(secret, content)).decode()}" for secret in secrets)


def verify(
    payload: bytes | str,
    headers: Mapping[str, str],
    secret: str | Iterable[str],
    *,
    tolerance: Duration = "5m",
    now: float | None = None,
) -> Any:
    """Return the JSON of a webhook that was received, or raise `InvalidSignature`. For receivers.

    `payload` is the raw body. `secret` is one secret or several; one of them must match. A timestamp that is more than
    `tolerance` in the past or the future is refused, which prevents replay attacks. Senders retry, so deduplicate by
    `webhook-id`.

    Examples:
        >>> secret = new_secret()
        >>> headers = {"webhook-id": "1", "webhook-timestamp": "1700000000"}
        >>> headers["webhook-signature"] = sign([secret], "1", 1700000000, b'{"type":"order.placed"}')
        >>> verify(b'{"type":"order.placed"}', headers, secret, now=1700000001)
        {'type': 'order.placed'}
    """
    body = payload.encode() if isinstance(payload, str) else bytes(payload)
    given = {str(name).lower(): value for name, value in headers.items()}
    id, timestamp, signatures = (_header(given, name) for name in ("id", "timestamp", "signature"))
    signed_at = _seconds(timestamp)
    away = (time.time() if now is None else now) - signed_at
    if abs(away) > to_timedelta(tolerance, name="tolerance").total_seconds():
        raise InvalidSignature("the timestamp is too old" if away > 0 else "the timestamp is ahead of the local clock")
    content = f"{id}.{timestamp}.".encode() + body
    expected = [_mac(one, content) for one in ([secret] if isinstance(secret, str) else secret)]
    offered = [_decoded(one) for one in signatures.split(" ")[:_MOST_SIGNATURES]]
    # All are compared, so that the duration reveals nothing.
    fits = [hmac.compare_digest(a, b) for a in expected for b in offered]
    if not any(fits):
        raise InvalidSignature("no signature matches")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidSignature(f"the signed body is not JSON ({error})") from None


def _mac(secret: str, content: bytes) -> bytes:
    try:
        key = _key(secret)
    except (binascii.Error, ValueError):
        raise ConfigurationError("a webhook secret is not base64; give it as the sender showed it") from None
    if not key:
        raise ConfigurationError("a webhook secret is empty; give the secret that the sender showed")
    return hmac.new(key, content, hashlib.sha256).digest()


def _key(secret: str) -> bytes:
    text = secret.removeprefix(_PREFIX)
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _header(given: Mapping[str, str], name: str) -> str:
    value = given.get(f"webhook-{name}")
    if not value:
        raise InvalidSignature(f"the request has no webhook-{name} header")
    return value


def _seconds(timestamp: str) -> int:
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 15):
        raise InvalidSignature("the timestamp is not a number of seconds")
    return int(timestamp)


def _decoded(offered: str) -> bytes:
    """Decodes one signature; empty if it is not ``v1``: other versions are ignored."""
    version, _, text = offered.partition(",")
    if version != "v1":
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
