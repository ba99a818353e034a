"""Options for sending webhooks: limits, timeouts and allowed networks."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from holdfast.core.errors import ConfigurationError
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.outbound.webhooks.ssrf import check_networks

NETWORKS_VARIABLE = "HOLDFAST_WEBHOOK_NETWORKS"
HTTP_VARIABLE = "HOLDFAST_WEBHOOK_HTTP"

DEFAULT_RETRY = RetryPolicy.exponential(attempts=12, base=5, factor=3, cap="6h", jitter="equal")
"""About a day: 5 s, 15 s, 45 s, 2 min … 6 h, each reduced by up to a half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """How a worker sends webhooks.

    `timeout` limits one attempt from the DNS lookup to the response, `connect_timeout` its connection.
    `allow_networks` lists private networks that may be called, `allow_http` allows unencrypted webhooks.
    After `threshold` failures in a row an endpoint's circuit opens for `cooldown`.
    """

    timeout: Duration = "15s"
    connect_timeout: Duration = "5s"
    allow_networks: tuple[str, ...] = ()
    allow_http: bool = False
    threshold: int = 5
    cooldown: Duration = "5m"
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        check_networks(self.allow_networks)
        for name in ("timeout", "connect_timeout", "cooldown"):
            given = to_timedelta(getattr(self, name), name=name)
            if given <= timedelta(0):
                raise ConfigurationError(f"{name} is {given}; give more than zero")
            object.__setattr__(self, name, given)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The defaults, with what `HOLDFAST_WEBHOOK_NETWORKS` (comma-separated) and `HOLDFAST_WEBHOOK_HTTP=1` allow."""
        networks = environment.get(NETWORKS_VARIABLE, "")
        http = environment.get(HTTP_VARIABLE, "")
        if http not in ("", "0", "1"):
            raise ConfigurationError(f"{HTTP_VARIABLE} is {http!r}; use 1 to allow http, or leave it out")
        return cls(
            allow_networks=tuple(one.strip() for one in networks.split(",") if one.strip()), allow_http=http == "1"
        )

    @property
    def seconds(self) -> float:
        """The timeout of an attempt in seconds."""
        return to_timedelta(self.timeout).total_seconds()
