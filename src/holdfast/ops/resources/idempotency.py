"""Idempotency keys: listing them, reading the stored response, and releasing one."""

from dataclasses import dataclass

from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.redaction.mask import REDACTED, mask, secret_name
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.integrations import idempotency
from holdfast.stores.integrations.idempotency import Headers, KeyRecord, KeyStatus, RecordCursor
from holdfast.stores.queries.query import MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDetail:
    """A key with its stored response, redacted. A body that is not text is omitted; its size is in the record."""

    record: KeyRecord
    headers: Headers
    body: str | None


def idempotency_keys(
    *,
    scope: str | None = None,
    key: str | None = None,
    status: KeyStatus | None = None,
    limit: int = 50,
    before: KeyRecord | RecordCursor | None = None,
) -> TaskSteps[list[KeyRecord]]:
    """A page of keys, newest first; pass the last one as `before` for the next."""
    if not 1 <= limit <= MAX_PAGE:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MAX_PAGE} items, read the next page for more")
    return (yield from transact(idempotency.records(scope=scope, key=key, status=status, limit=limit, before=before)))


def idempotency_key(scope: str, key: str) -> TaskSteps[KeyDetail]:
    """One key with its stored response."""
    found = yield from transact(idempotency.records(scope=scope, key=key, limit=1))
    stored = yield from transact(idempotency.read_record(scope, key))
    if not found:
        raise NotFound("idempotency key", key, f"it may have expired, or belong to another scope than {scope!r}")
    response = None if stored is None else stored.response
    if response is None:
        return KeyDetail(record=found[0], headers=(), body=None)
    headers = tuple((name, REDACTED if secret_name(name) else value) for name, value in response.headers)
    return KeyDetail(record=found[0], headers=headers, body=_text(response.body))


def release_idempotency_key(
    scope: str, key: str, *, actor: str, reason: str | None = None, force: bool = False
) -> TaskSteps[KeyStatus]:
    """Releases a key, so that it can be used again; returns its previous state. Audited.

    A request that holds the key can no longer complete. A completed key is `Refused` unless `force`: the next request would
    apply its effect again.
    """
    return (yield from transact(idempotency.release_record(scope, key, actor, reason, force=force)))


def _text(body: bytes | None) -> str | None:
    try:
        return None if body is None else mask(body.decode())
    except UnicodeDecodeError:
        return None
