"""Webhook endpoints: listing, adding, disabling and testing them, and rotating their secrets."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Unpack

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import ConfigurationError, HoldfastError, NotFound
from holdfast.core.redaction.mask import mask
from holdfast.core.values.bounded_count import BoundedCount, total
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.ops.queries.flow_keys import rate_text
from holdfast.ops.queries.stats import loads
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.outbound.webhooks.endpoint import Added, EndpointOptions, new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.outbound.webhooks.signature import new_secret
from holdfast.outbound.webhooks.ssrf import shown
from holdfast.stores.admin.actions import record
from holdfast.stores.integrations import webhook
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import Endpoint
from holdfast.stores.queries.delivery_counts import counts

_MAX_OVERLAP = timedelta(days=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An endpoint without its secret: the URL has no query, and of the headers only the names are shown."""

    id: str
    url: str
    tenant: str | None
    events: tuple[str, ...]
    headers: tuple[str, ...]
    rate: str | None
    order: str | None
    concurrency: int
    previous_secret_until: datetime | None
    created_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    circuit: CircuitState
    circuit_until: datetime | None
    consumer: str
    pending: BoundedCount
    in_flight: BoundedCount
    failed: BoundedCount


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTestResult:
    """The result of a test event. Without a status there was no response, and `error` is the reason."""

    id: str
    accepted: bool
    status: int | None
    latency: timedelta
    excerpt: str
    error: str | None


def webhooks(*, tenant: str | None = None, show_path: bool = False) -> TaskSteps[list[Webhook]]:
    """All endpoints, or those of a tenant, oldest first.

    Paths are hidden unless `show_path` is given: the path of many incoming webhooks is a secret.
    """
    found = yield from transact(webhook.listed_endpoints())
    known_loads = loads((yield from transact(counts())))
    circuits = {one.name: one for one in (yield from transact(breakers()))}
    listed = []
    for one in found:
        if tenant is not None and one.tenant != tenant:
            continue
        own = [load for load in known_loads if load.consumer == one.consumer]
        stored = circuits.get(one.consumer)
        listed.append(
            Webhook(
                id=one.id,
                url=shown(one.url, path=show_path),
                tenant=one.tenant,
                events=one.events,
                headers=tuple(sorted(one.headers)),
                rate=None if one.flow is None else rate_text(one.flow),
                order=None if one.flow is None else one.flow.order,
                concurrency=one.concurrency,
                previous_secret_until=one.previous_until,
                created_at=one.created_at,
                disabled_at=one.disabled_at,
                disabled_reason=None if one.disabled_reason is None else mask(one.disabled_reason),
                circuit=CircuitState.CLOSED if stored is None else stored.circuit.state(stored.now),
                circuit_until=None if stored is None else stored.circuit.open_until,
                consumer=one.consumer,
                pending=total(load.pending for load in own),
                in_flight=total(load.in_flight for load in own),
                failed=total(load.failed for load in own),
            )
        )
    return listed


def add_webhook(
    url: str,
    *,
    events: Sequence[str],
    actor: str,
    options: WebhookOptions | None = None,
    **given: Unpack[EndpointOptions],
) -> TaskSteps[Added]:
    """Stores an endpoint that gets these events from now on. The secret is returned only here."""
    endpoint = new_endpoint(url, events=events, options=options or WebhookOptions.from_environment(), **given)
    yield from transact(webhook.add_endpoint(endpoint, actor))
    return Added(endpoint.id, endpoint.secrets[0])


def disable_webhook(id: str, *, actor: str, reason: str) -> TaskSteps[bool]:
    """Stops new deliveries to an endpoint and holds the existing ones; false if it was already disabled."""
    return (yield from transact(webhook.disable_endpoint(id, actor, reason)))


def enable_webhook(id: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes the held deliveries of an endpoint and allows new ones; false if it was not disabled."""
    enabled = yield from transact(webhook.enable_endpoint(id, actor, reason))
    if enabled:
        yield from call_store(lambda store: store.hint_sync())
    return enabled


def rotate_webhook_secret(
    id: str, *, actor: str, overlap: Duration = "1d", reason: str | None = None
) -> TaskSteps[Added]:
    """Sets a new secret and returns it; it cannot be read later. During `overlap`, deliveries are also signed with the old one."""
    duration = to_timedelta(overlap, name="overlap")
    if duration > _MAX_OVERLAP:
        raise ConfigurationError(
            f"overlap is {duration}; the maximum is {_MAX_OVERLAP.days} days, because the old secret may have leaked"
        )
    secret = new_secret()
    yield from transact(webhook.rotate_secret(id, secret, duration, actor, reason))
    return Added(id, secret)


def try_webhook(id: str, *, actor: str, options: WebhookOptions | None = None) -> TaskSteps[WebhookTestResult]:
    """Posts a signed event `webhook.test` immediately, without circuit and limits. Creates no delivery."""
    found = [one for one in (yield from transact(webhook.endpoints())) if one.id == id]
    if not found:
        raise NotFound("webhook endpoint", id, "`holdfast webhooks list` shows the endpoints")
    found[0].check_decrypted()
    chosen = options or WebhookOptions.from_environment()
    tried = yield from call_store(lambda _: asyncio.run(_try(found[0], chosen)))
    detail = {"status": tried.status, "accepted": tried.accepted, "error": tried.error}
    yield from transact(record(actor, "test", "webhook", id, None, detail))
    return tried


async def _try(endpoint: Endpoint, options: WebhookOptions) -> WebhookTestResult:
    from holdfast.outbound.webhooks.dispatcher import WebhookEvent, post
    from holdfast.outbound.webhooks.sender import WebhookSender

    event = WebhookEvent(
        id=f"test_{secrets.token_hex(8)}",
        type="webhook.test",
        occurred_at=datetime.now(UTC),
        payload={"endpoint": endpoint.id},
    )
    sender = WebhookSender(options)
    started = time.monotonic()
    try:
        answer = await post(sender, endpoint, event, within=options.seconds)
    except (OSError, HoldfastError) as error:
        latency = timedelta(seconds=time.monotonic() - started)
        return WebhookTestResult(
            id=endpoint.id, accepted=False, status=None, latency=latency, excerpt="", error=str(error)
        )
    finally:
        await sender.close()
    return WebhookTestResult(
        id=endpoint.id,
        accepted=200 <= answer.status < 300,
        status=answer.status,
        latency=timedelta(seconds=answer.latency),
        excerpt=answer.excerpt,
        error=None,
    )
