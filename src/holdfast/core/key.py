"""Idempotency keys: bounded text, and helpers for readable keys."""

from __future__ import annotations

import re
from uuid import UUID

from holdfast.core.errors import InvalidKey

MAX_KEY = 500

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def key(domain: str, user: str | int | UUID, entity: str | int | UUID, operation: str, version: str | int) -> str:
    """Return ``<domain>:<user>:<entity>:<operation>:<version>``; the same parts give the same key.

    Only the operation may contain colons.

    Examples:
        >>> key("order", 7, 42, "cancel:refund", "v1")
        'order:7:42:cancel:refund:v1'
    """
    owner = f"{_part('domain', domain)}:{_part('user', user)}:{_part('entity', entity)}"
    return check_key(f"{owner}:{_part('operation', operation, colons=True)}:{_part('version', version)}")


def job_key(job_id: str | int | UUID, operation: str, entity: str | int | UUID) -> str:
    """Return ``job:<id>:<operation>:<entity>``, so that two runs of a job use the same key.

    No part may contain a colon, so the four parts differ from the five parts of `key`.

    Examples:
        >>> job_key(9, "charge", "invoice-3")
        'job:9:charge:invoice-3'
    """
    return check_key(f"job:{_part('job id', job_id)}:{_part('operation', operation)}:{_part('entity', entity)}")


def check_key(value: str) -> str:
    """Return `value` if it is 1 to 500 printable characters, else raise `InvalidKey`."""
    if not isinstance(value, str):
        raise InvalidKey(value, f"it is of type {type(value).__name__}; convert it to text first")
    if not 1 <= len(value) <= MAX_KEY:
        raise InvalidKey(value, f"it has {len(value)} characters; use 1 to {MAX_KEY}, or a hash of a longer text")
    if wrong := _UNPRINTABLE.search(value):
        raise InvalidKey(
            value, f"character {wrong[0]!r} at position {wrong.start() + 1} is not printable; leave it out"
        )
    return value


def _part(name: str, value: str | int | UUID, *, colons: bool = False) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(value, f"the {name} is of type {type(value).__name__}; give text, a number or a UUID")
    text = str(value)
    if not colons and ":" in text:
        raise InvalidKey(text, f"the {name} contains a colon, which separates the parts; replace it")
    if not all(text.split(":")):
        raise InvalidKey(text, f"the {name} is empty, or has an empty part between colons")
    return text
