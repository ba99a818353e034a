"""The transaction that a framework keeps for the current thread, for calls that name no connection."""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

AMBIENT: Final[Any] = object()
"""The connection of a call that names none. Without a framework it commits in a separate transaction."""


class AmbientTransaction(Protocol):
    """Finds the open transaction of a framework."""

    def connection(self) -> Any:
        """The connection of this thread if a transaction is open on it, otherwise None."""
        ...

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a blocking function in the thread that has the framework's connection."""
        ...
