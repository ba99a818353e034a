"""Publishing in Django's `transaction.atomic` blocks."""

from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

T = TypeVar("T")


class AtomicBlock:
    """The open `atomic` block of one database alias.

    Django's transactions belong to a thread. An async call runs in the thread that async code uses for the ORM, which is
    where a `TestCase` has its transaction.
    """

    def __init__(self, alias: Callable[[], str]) -> None:
        self._alias = alias

    def connection(self) -> Any:
        # Autocommit turned off without `atomic` is a transaction too.
        found = connections[self._alias()]
        is_open = found.in_atomic_block or (found.connection is not None and not found.autocommit)
        return found if is_open else None

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        return await sync_to_async(function, thread_sensitive=True)(*args)
