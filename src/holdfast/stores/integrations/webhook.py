"""Webhook endpoints in the store. Each endpoint is a separate consumer with ordinary subscriptions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import orjson

from holdfast.core.encryption import EncryptedValue, encrypted_value, unreadable
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.flow import FlowSettings, effective_flow
from holdfast.core.retry import RetryPolicy, stored_policy
from holdfast.core.values.text import sanitize
from holdfast.stores.admin.actions import audited
from holdfast.stores.dialect import aware_time, optional_time
from holdfast.stores.messages.publish import LOCK_REGISTRY
from holdfast.stores.messages.registry import (
    Declaration,
    EventSubscription,
    register,
    registry_epoch,
    save_subscriptions,
)
from holdfast.stores.operation import Query, Row, Steps, operation
from holdfast.stores.row import texts

_REASON = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The destination of a tenant's events. Its repr contains no secrets and no header values.

    `secrets` are the valid ones, newest first. `flow` has the rate of all workers together and the order.
    `concurrency` is the number of concurrent requests of one worker; with a rate, of all workers together.
    """

    id: str
    url: str = field(repr=False)
    events: tuple[str, ...]
    tenant: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    previous_until: datetime | None = None
    flow: FlowSettings | None = None
    concurrency: int = 10
    queue: str = "webhooks"
    priority: int = 1
    retry: RetryPolicy
    created_at: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str | None = None
    encrypted: EncryptedValue | None = field(default=None, repr=False)
    """A secret or the headers that this process cannot decrypt; then it has no secrets and no headers."""

    @property
    def consumer(self) -> str:
        """The name of its consumer and of its circuit."""
        return consumer_of(self.id)

    def check_decrypted(self) -> None:
        """Raises `EncryptionKeyMissing` or `DecryptionFailed` if this process cannot sign requests to it."""
        if self.encrypted is not None:
            raise unreadable(self.encrypted)

    @property
    def request_limit(self) -> int:
        """How many requests one worker makes at once: the limit of its flow control, or `concurrency`."""
        limit = None if self.flow is None else self.flow.limit
        return self.concurrency if limit is None else limit


def consumer_of(id: str) -> str:
    """The consumer of an endpoint."""
    return f"webhook:{id}"


@operation
def add_endpoint(endpoint: Endpoint, actor: str) -> Steps[None]:
    """Stores an endpoint and subscribes its consumer from now on, in one transaction.

    A transaction with an old snapshot is refused: it could use the epoch of another registration, and publishers would
    not see this one.
    """
    ((isolation,),) = yield Query("isolation")
    if isolation != "read committed":
        raise ConfigurationError(
            f"a webhook cannot be added in a transaction with isolation {isolation}; use READ COMMITTED, or conn=None "
            "to commit it separately"
        )
    flow = None if endpoint.flow is None else endpoint.flow.text
    declaration = Declaration(endpoint.consumer, endpoint.queue, endpoint.priority, endpoint.retry, flow)
    subscriptions = [EventSubscription(pattern, endpoint.consumer, from_start=False) for pattern in endpoint.events]
    yield from register([declaration], subscriptions, 0).start()
    (secret,) = endpoint.secrets
    yield Query(
        "add_endpoint",
        {
            "id": endpoint.id,
            "consumer": endpoint.consumer,
            "url": endpoint.url,
            "tenant": endpoint.tenant,
            "events": list(endpoint.events),
            "headers": orjson.dumps(dict(endpoint.headers)).decode(),
            "secret": secret,
            "concurrency": endpoint.concurrency,
        },
    )
    detail = {"events": list(endpoint.events), "tenant": endpoint.tenant}
    yield audited(actor, "add", "webhook", endpoint.id, None, detail)


@operation(reads=True)
def endpoints() -> Steps[list[Endpoint]]:
    """All endpoints, oldest first."""
    return [_endpoint(row) for row in (yield Query("endpoints"))]


@operation(reads=True)
def listed_endpoints() -> Steps[list[Endpoint]]:
    """All endpoints, oldest first, without secrets."""
    return [_endpoint(row) for row in (yield Query("listed_endpoints"))]


@operation
def disable_endpoint(id: str, actor: str, reason: str) -> Steps[bool]:
    """Stops new deliveries to an endpoint and holds existing ones; False if it was already disabled."""
    yield LOCK_REGISTRY
    if not (rows := (yield Query("disable_endpoint", {"id": id, "reason": sanitize(reason, _REASON)}))):
        yield from _known(id)
        return False
    ((consumer, events),) = rows
    epoch = yield from registry_epoch()
    for pattern in texts(events):
        yield Query("retire_subscription", {"pattern": pattern, "consumer": consumer, "epoch": epoch + 1})
    yield Query("pause_consumer", {"name": consumer})
    yield audited(actor, "disable", "webhook", id, reason)
    return True


@operation
def enable_endpoint(id: str, actor: str, reason: str | None) -> Steps[bool]:
    """Resumes held deliveries and subscribes to events from now on; False if it was not disabled."""
    yield LOCK_REGISTRY
    if not (rows := (yield Query("enable_endpoint", {"id": id}))):
        yield from _known(id)
        return False
    ((consumer, events),) = rows
    epoch = yield from registry_epoch()
    # New subscriptions: reactivated ones would catch up on all events published while the endpoint was disabled.
    yield Query("forget_subscriptions", {"consumer": consumer})
    again = [EventSubscription(pattern, consumer, from_start=False) for pattern in texts(events)]
    yield save_subscriptions(again, epoch + 1)
    yield Query("resume_consumer", {"name": consumer})
    yield audited(actor, "enable", "webhook", id, reason)
    return True


@operation
def rotate_secret(id: str, secret: str, overlap: timedelta, actor: str, reason: str | None) -> Steps[None]:
    """Signs with a new secret from now on, and during `overlap` also with the previous one."""
    if not (yield Query("rotate_secret", {"id": id, "secret": secret, "overlap": overlap})):
        raise _absent(id)
    yield audited(actor, "rotate-secret", "webhook", id, reason, {"overlap_seconds": overlap.total_seconds()})


@operation(single=True)
def serve_consumers(worker: str, consumers: Sequence[str]) -> Steps[None]:
    """Updates the consumers that a worker serves."""
    yield Query("serve_consumers", {"worker": worker, "consumers": list(consumers)})


def _known(id: str) -> Steps[None]:
    if not any(row[0] == id for row in (yield Query("listed_endpoints"))):
        raise _absent(id)


def _absent(id: str) -> NotFound:
    return NotFound("webhook endpoint", id, "`holdfast webhooks list` shows the existing endpoints")


def _endpoint(row: Row) -> Endpoint:
    id, _, url, tenant, events, headers, secret, previous, previous_until, *rest = row
    concurrency, created, disabled, reason, queue, priority, retry, flow, override = rest
    stored = [text for text in (headers, secret, previous) if text is not None]
    encrypted = next(filter(None, map(encrypted_value, stored)), None)
    return Endpoint(
        id=str(id),
        url=str(url),
        events=texts(events),
        tenant=tenant,
        headers={} if encrypted else orjson.loads(headers),
        secrets=() if encrypted else tuple(one for one in (secret, previous) if one is not None),
        previous_until=optional_time(previous_until),
        flow=None if flow is None else effective_flow(flow, override),
        concurrency=concurrency,
        queue=str(queue),
        priority=priority,
        retry=stored_policy(str(retry)),
        created_at=aware_time(created),
        disabled_at=optional_time(disabled),
        disabled_reason=reason,
        encrypted=encrypted,
    )
