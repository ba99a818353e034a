"""Closes stale database connections around each run of a handler, as Django does around each request."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections


def with_cleanup(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function: before and after it, connections that are unusable or older than `CONN_MAX_AGE` are closed."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            await sync_to_async(close_stale_connections)()
            try:
                return await function(*args, **kwargs)
            finally:
                await sync_to_async(close_stale_connections)()

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_stale_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_stale_connections()

    return run


def close_stale_connections() -> None:
    """Closes connections of this thread that are unusable or too old, except one in a transaction, as in tests."""
    for one in connections.all(initialized_only=True):
        if not one.in_atomic_block:
            one.close_if_unusable_or_obsolete()
