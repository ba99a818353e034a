"""New endpoints: validation before anything is stored."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.pattern import check_pattern
from holdfast.core.failures.http import fits_header
from holdfast.core.flow import ALL, FlowSettings, parse_rate
from holdfast.core.message import check_priority
from holdfast.core.retry import RetryPolicy, check_policy
from holdfast.core.values.names import check_name
from holdfast.outbound.webhooks.options import DEFAULT_RETRY, WebhookOptions
from holdfast.outbound.webhooks.signature import check_secret, new_secret
from holdfast.outbound.webhooks.ssrf import check_networks, check_url
from holdfast.stores.integrations.webhook import Endpoint

QUEUE = "webhooks"
CONCURRENCY = 10

_MOST_EVENTS = 50
_MOST_HEADERS, _MOST_VALUE = 20, 4_000
_MAX_RATE, _MOST_CONCURRENCY = 10_000, 1_000
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_OURS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "te", "upgrade", "expect"}
)


@dataclass(frozen=True, slots=True)
class Added:
    """An endpoint that was added or has a new secret. The secret is shown only this once."""

    id: str
    secret: str = field(repr=False)


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint besides its address and events.

    `tenant` limits it to events published with the header `tenant`. `rate` is how many requests all workers together make
    in a window, such as `90/10s`; a number is requests per second. `order` sends events one at a time in the order in which
    they were published; a dead letter stops the endpoint (`block`) or is left out (`skip`). `concurrency` is how many requests one worker
    makes at once; with a rate, all workers together.
    """

    tenant: str | None
    secret: str | None
    headers: Mapping[str, str] | None
    rate: str | float | None
    order: str | None
    concurrency: int
    retry: RetryPolicy | None
    queue: str
    priority: int


def new_endpoint(
    url: str,
    *,
    events: Sequence[str],
    options: WebhookOptions,
    tenant: str | None = None,
    secret: str | None = None,
    headers: Mapping[str, str] | None = None,
    rate: str | float | None = None,
    order: str | None = None,
    concurrency: int = CONCURRENCY,
    retry: RetryPolicy | None = None,
    queue: str = QUEUE,
    priority: int = 1,
) -> Endpoint:
    """Returns an endpoint with a new random id, or raises `ConfigurationError`."""
    check_url(url, allow_http=options.allow_http, allowed=check_networks(options.allow_networks))
    return Endpoint(
        id=secrets.token_hex(8),
        url=url,
        events=_events(events),
        tenant=None if tenant is None else check_name("tenant", tenant),
        headers=_headers(headers or {}),
        secrets=(new_secret() if secret is None else check_secret(secret),),
        flow=_flow(rate, order, _concurrency(concurrency)),
        concurrency=_concurrency(concurrency),
        queue=check_name("queue", queue),
        priority=check_priority(priority),
        retry=DEFAULT_RETRY if retry is None else check_policy("retry", retry),
    )


def _events(events: Sequence[str]) -> tuple[str, ...]:
    if isinstance(events, str) or not isinstance(events, Sequence) or not events:
        raise ConfigurationError(f"events is {events!r}; give a list of event types or patterns such as ['order.*']")
    if len(events) > _MOST_EVENTS:
        raise ConfigurationError(
            f"an endpoint has {len(events)} event types; the limit is {_MOST_EVENTS}: use a pattern such as order.*"
        )
    return tuple(dict.fromkeys(check_pattern(pattern) for pattern in events))


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Checks headers. Values may be credentials, so errors contain only the name."""
    if len(headers) > _MOST_HEADERS:
        raise ConfigurationError(f"an endpoint has {len(headers)} headers; give {_MOST_HEADERS} or fewer")
    checked = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} cannot be the name of an HTTP header")
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise ConfigurationError(f"header {name} is set by Holdfast; leave it out")
        if not isinstance(value, str) or len(value) > _MOST_VALUE or not fits_header(value):
            raise ConfigurationError(
                f"the value of header {name} cannot be sent; give at most {_MOST_VALUE:,} printable ASCII characters"
            )
        checked[name.lower()] = value
    return checked


def _flow(rate: str | float | None, order: str | None, concurrency: int) -> FlowSettings | None:
    if rate is None and order is None:
        return None
    if order is not None and order not in ("block", "skip"):
        raise ConfigurationError(f"order is {order!r}; give 'block' (a dead letter stops the endpoint) or 'skip'")
    count, window = (None, None) if rate is None else parse_rate(_rate_text(rate))
    if order is not None:
        return FlowSettings(key=ALL, order=order, rate_count=count, rate_window=window)
    # A claim that the worker could not send would use a token of the rate.
    return FlowSettings(limit=concurrency, rate_count=count, rate_window=window)


def _rate_text(rate: str | float) -> str:
    """A rate as text; a number is requests per second."""
    if isinstance(rate, str) and "/" in rate:
        return rate
    try:
        number = 0.0 if isinstance(rate, bool) else float(rate)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= _MAX_RATE:
        raise ConfigurationError(
            f"rate is {rate!r}; give a count and a window such as '90/10s', or requests per second up to {_MAX_RATE:,}"
        )
    return f"{round(number)}/1s" if number >= 1 else f"1/{round(1000 / number)}ms"


def _concurrency(concurrency: int) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_CONCURRENCY:
        raise ConfigurationError(f"concurrency is {concurrency!r}; give 1 to {_MOST_CONCURRENCY:,} requests at once")
    return concurrency
