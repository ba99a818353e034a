"""What the endpoints of all adapters share: how they are opened and how their settings are checked."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, overload

from holdfast.brokers.protocol import Sender, Subscription
from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from holdfast.core.values.duration import Duration, to_timedelta


class BrokerEndpoint:
    """A topic, stream or queue that can be a source and a target.

    The modules of an adapter are imported when an endpoint is opened: they need the client library.
    """

    __slots__ = ()
    adapter: ClassVar[str]
    """The package under `holdfast.brokers`, which is also the name of the extra."""
    client: ClassVar[str]
    """The package of the client library."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @overload
    def open(self) -> AbstractAsyncContextManager[Sender]: ...
    @overload
    def open(self, consumer: str) -> AbstractAsyncContextManager[Subscription]: ...
    def open(
        self, consumer: str | None = None
    ) -> AbstractAsyncContextManager[Sender] | AbstractAsyncContextManager[Subscription]:
        """Opens a subscription for the consumer, or a sender if no consumer is given."""
        if consumer is None:
            sender: AbstractAsyncContextManager[Sender] = self._module("sender").open_sender(self)
            return sender
        if getattr(self, "group", "") is None:
            raise ConfigurationError(f"{self.name} has no group, which a consumer needs; give group=")
        subscription: AbstractAsyncContextManager[Subscription]
        subscription = self._module("subscription").open_subscription(self, consumer)
        return subscription

    async def durability_warnings(self) -> list[str]:
        """Settings of the broker or the stream that can lose acknowledged records, as far as the broker reports them."""
        warnings: list[str] = await self._module("diagnostics").durability_warnings(self)
        return warnings

    def _module(self, name: str) -> Any:
        if find_spec(self.client) is None:
            raise ConfigurationError(
                f"{self.name} needs the package {self.client}; run `pip install 'holdfast[{self.adapter}]'`"
            )
        return import_module(f"holdfast.brokers.{self.adapter}.{name}")


@contextmanager
def broker_errors(
    types: tuple[type[BaseException], ...], unavailable: Callable[[BaseException], BrokerUnavailable]
) -> Iterator[None]:
    """Raises an adapter's `BrokerUnavailable` instead of the errors of its client."""
    try:
        yield
    except types as error:
        raise unavailable(error) from error


def broker_address(name: str, given: str | None, variable: str, example: str) -> str:
    """The given address, or the one in the environment variable."""
    if not (address := given or os.environ.get(variable)):
        raise ConfigurationError(f"{name} has no address; give {example} or set {variable}")
    return address


def check_texts(function: str, name: object, **optional: object) -> None:
    """Raises `ConfigurationError` if a name or an option is not text; without this, opening would fail later."""
    for option, value in {"name": "" if name is None else name, **optional}.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigurationError(f"{function}: {option} is {value!r}; give text")


def check_start(what: str, start: str) -> None:
    """Raises `ConfigurationError` if `start` is not a position at which a new consumer group can start."""
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"{what}: start is {start!r}; use 'beginning' or 'now'")


def ack_timeout_seconds(what: str, ack_timeout: Duration) -> float:
    """The acknowledgment timeout in seconds; raises `ConfigurationError` if it is shorter than 100 ms."""
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 0.1:
        raise ConfigurationError(f"{what}: ack_timeout is {ack_timeout!r}; give 100ms or more")
    return seconds


def header_text(value: str | bytes | object) -> str:
    """A header's value as text; bytes that are not UTF-8 are escaped."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else "" if value is None else str(value)
