"""What the endpoints of all adapters share: how they are opened and how their settings are checked."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from importlib.util import find_spec
from typing import overload

from holdfast.brokers.protocol import Sender, Subscription
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import BrokerUnavailable, ConfigurationError


class BrokerEndpoint:
    """A topic, stream or queue that can be a source and a target."""

    __slots__ = ()

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
        """With the name of a consumer: a subscription. Without: a sender."""
        return self._open_sender() if consumer is None else self._open_subscription(consumer)

    def _open_sender(self) -> AbstractAsyncContextManager[Sender]:
        raise NotImplementedError

    def _open_subscription(self, consumer: str) -> AbstractAsyncContextManager[Subscription]:
        raise NotImplementedError


@contextmanager
def broker_errors(
    types: tuple[type[BaseException], ...], unavailable: Callable[[BaseException], BrokerUnavailable]
) -> Iterator[None]:
    """Raises an adapter's `BrokerUnavailable` instead of the errors of its client."""
    try:
        yield
    except types as error:
        raise unavailable(error) from error


def require_client(name: str, module: str, extra: str) -> None:
    """Raises `ConfigurationError` if the client library of a broker is not installed."""
    if find_spec(module) is None:
        raise ConfigurationError(f"{name} needs the package {module}; pip install holdfast[{extra}]")


def require_group(name: str, group: str | None) -> None:
    """Raises `ConfigurationError` if an endpoint without a consumer group is opened for a consumer."""
    if group is None:
        raise ConfigurationError(f"{name} has no group to consume for; give group=")


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
    """The acknowledgement timeout in seconds; `ConfigurationError` if it is shorter than 100 ms."""
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 0.1:
        raise ConfigurationError(f"{what}: ack_timeout is {ack_timeout!r}; give 100ms or more")
    return seconds


def header_text(value: str | bytes | object) -> str:
    """A header's value as text; bytes that are not UTF-8 are escaped."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else "" if value is None else str(value)
