"""Errors about other systems: HTTP services, webhook receivers and senders, brokers."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.errors.root import HoldfastError, quoted
from holdfast.core.redaction.mask import mask


class ServiceRefused(HoldfastError):
    """A service answered a call with an error status. `headers` contains Retry-After and Date.

    `body` is the beginning of the response. It is not part of the message, because messages are logged.
    """

    def __init__(
        self, service: str, method: str, path: str, status: int, headers: Mapping[str, str], body: str = ""
    ) -> None:
        self.service, self.method, self.path, self.status = service, method, path, status
        self.headers, self.body = dict(headers), body
        super().__init__(service, method, path, status, self.headers, body)

    def __str__(self) -> str:
        return f"{self.service} answered {self.status} to {self.method} {quoted(self.path, 200)}"


class AddressRefused(HoldfastError):
    """A webhook URL resolves to an address that must not be called, such as a private one. Nothing was sent."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(host, address)
        self.host, self.address = host, address

    def __str__(self) -> str:
        return (
            f"{quoted(self.host)} resolves to {quoted(self.address)}, a private or reserved address, so nothing was "
            "sent; to permit it, allow its network (WebhookOptions(allow_networks=...) or HOLDFAST_WEBHOOK_NETWORKS)"
        )


class WebhookRefused(HoldfastError):
    """A webhook receiver answered with an error status. `headers` contains Retry-After and Date."""

    def __init__(self, host: str, status: int, phrase: str, excerpt: str, headers: Mapping[str, str]) -> None:
        self.host, self.status, self.phrase, self.excerpt, self.headers = host, status, phrase, excerpt, dict(headers)
        super().__init__(host, status, phrase, excerpt, self.headers)

    def __str__(self) -> str:
        body = f': "{self.excerpt}"' if self.excerpt else ""
        return f"{self.host} answered {self.status} {self.phrase}".rstrip() + body


class InvalidSignature(HoldfastError, ValueError):
    """A received webhook is not signed with the shared secret, or is too old. Do not process it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"webhook signature is invalid: {self.problem}; respond with status 400 and do not process it"


class BrokerUnavailable(HoldfastError):
    """A broker cannot be reached or did not respond in time. `broker` is its name without a password."""

    def __init__(self, broker: str, cause: str = "") -> None:
        # The message of a client library may contain the address with its password.
        cause = mask(cause)
        super().__init__(broker, cause)
        self.broker, self.cause = broker, cause

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"broker {self.broker} is unavailable{cause}; check that it is running and that its address is correct"
