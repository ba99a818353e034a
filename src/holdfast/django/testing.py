"""Test support: runs what a test published and enqueued, inside the transaction of its `TestCase`."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from holdfast.django.app import DjangoHoldfast, project_app
from holdfast.django.connection_store import ConnectionStore
from holdfast.testing.harness import Harness


def run_deliveries(app: DjangoHoldfast | None = None) -> None:
    """Runs all deliveries to their end, through their retry delays, in the open transaction of the test.

    A real worker calls the handlers one after the other. They see what the test wrote, the test sees what they wrote, and
    all of it is rolled back with the test. It works in a `TestCase` and in a `TransactionTestCase`.
    """
    with transaction_harness(app) as harness:
        async_to_sync(harness.drain)()


@contextlib.contextmanager
def transaction_harness(app: DjangoHoldfast | None = None) -> Iterator[Harness]:
    """The harness of `holdfast.testing` on the connection of this thread: assertions, injected failures, a clock."""
    app = app or project_app()
    store = ConnectionStore(app.configuration.database, app.schema)
    handlers = dict(app.handlers)
    with app.on_store(store):
        for name, handler in handlers.items():
            if not handler.is_async:
                app.handlers[name] = replace(handler, function=_in_test_thread(handler.function, store))
        try:
            yield Harness(app)
        finally:
            app.handlers.update(handlers)


def _in_test_thread(function: Callable[..., Any], store: ConnectionStore) -> Callable[..., Any]:
    """The function, called in the thread of the test, which has the connection with the transaction."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with store.shared():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(call, thread_sensitive=True)(*args, **kwargs)

    return run
