"""Webhook endpoints as handlers of a worker, added and changed at run time."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable, TerminalError
from holdfast.core.failures.classify import Rules
from holdfast.core.message import TENANT_HEADER
from holdfast.core.query_interval import next_query
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.outbound.webhooks.circuits import EndpointCircuits
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import (
    Endpoint,
    disable_endpoint,
    endpoints,
    serve_consumers,
)
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.outbound.webhooks.dispatcher import WebhookDispatcher

log = get_logger("holdfast.webhooks")

_NO_RULES = Rules()
_COST_FACTOR, _LONGEST = 20.0, 30.0


class _WorkerHandlers(Mapping[str, Handler]):
    """The handlers of an app, and one for each endpoint, created at its first use: 100,000 would delay a worker's start."""

    def __init__(self, own: Mapping[str, Handler], make: Callable[[Endpoint], Handler]) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self._own, self._make = own, make
        self._made: dict[str, Handler] = {}

    def __getitem__(self, name: str) -> Handler:
        found = self._own.get(name) or self._made.get(name)
        if found is None:
            found = self._made[name] = self._make(self.endpoints[name])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self.endpoints

    def __iter__(self) -> Iterator[str]:
        return iter({**self.endpoints, **self._own})

    def __len__(self) -> int:
        return len({**self.endpoints, **self._own})


class EndpointHandlers:
    """A worker's handlers, with one for each endpoint. A periodic task finds new and changed endpoints."""

    interval = timedelta(seconds=1)

    def __init__(self, store: Store, handlers: Mapping[str, Handler], options: WebhookOptions) -> None:
        self._store, self._options = store, options
        self._known: dict[str, Endpoint] = {}
        self.handlers = _WorkerHandlers(handlers, self._handler)
        self._dispatcher: WebhookDispatcher | None = None
        self._circuits = EndpointCircuits(store)
        self._due = 0.0
        self._announced: tuple[str, list[str]] | None = None

    async def load(self) -> None:
        """Loads the endpoints before the worker starts: a worker that runs until idle must know all its work."""
        with contextlib.suppress(StoreUnavailable):
            await self.refresh()

    async def perform(self, worker: str) -> None:
        """Refreshes the endpoints at intervals that grow with the cost, and stores the served consumers in the worker's row."""
        if time.monotonic() >= self._due:
            await self.refresh()
        if self.handlers.endpoints and self._announced != (announced := (worker, sorted(self.handlers))):
            await self._store.run(serve_consumers(*announced))
            self._announced = announced

    async def refresh(self) -> None:
        """Loads the stored endpoints."""
        started = time.monotonic()
        found = await self._store.run(endpoints())
        if found and find_spec("httpcore2") is None:
            if not self._due:
                log.error(
                    "webhook client missing",
                    endpoints=len(found),
                    hint="to send webhooks, run `pip install 'holdfast[http]'`",
                )
            found = []
        self._known = {endpoint.consumer: endpoint for endpoint in found}
        self.handlers.endpoints.update(self._known)
        if found:
            self._the_dispatcher()
        if self._dispatcher is not None:
            self._dispatcher.serve(found)
            asked_at = time.monotonic()
            self._circuits.take(await self._store.run(breakers()), asked_at)
        shortest = self.interval.total_seconds() / 2
        self._due = next_query(started, time.monotonic(), factor=_COST_FACTOR, longest=_LONGEST, shortest=shortest)

    async def close(self) -> None:
        """Closes the HTTP connections."""
        if self._dispatcher is not None:
            await self._dispatcher.close()

    async def _deliver(self, ctx: Context, payload: object) -> None:
        from holdfast.outbound.webhooks.dispatcher import WebhookEvent
        from holdfast.outbound.webhooks.sender import WebhookResponse

        def record(response: WebhookResponse) -> None:
            ctx.detail = response.to_json()

        event = WebhookEvent(
            id=str(ctx.message_id),
            type=ctx.type,
            occurred_at=ctx.occurred_at,
            payload=payload,
            tenant=ctx.headers.get(TENANT_HEADER),
        )
        known = self._known.get(ctx.consumer)
        if known is None:
            raise TerminalError(f"the endpoint of {ctx.consumer} is no longer in the store; discard the delivery")
        known.check_decrypted()
        await self._the_dispatcher().deliver(known, event, record)

    def _handler(self, endpoint: Endpoint) -> Handler:
        return Handler(
            name=endpoint.consumer,
            kind=Kind.WEBHOOK,
            function=self._deliver,
            queue=endpoint.queue,
            priority=endpoint.priority,
            retry=endpoint.retry,
            rules=_NO_RULES,
            keep_runs=True,
            takes_context=True,
        )

    def _the_dispatcher(self) -> "WebhookDispatcher":
        if self._dispatcher is None:
            # An app without endpoints needs no HTTP client.
            from holdfast.outbound.webhooks.dispatcher import WebhookDispatcher

            self._dispatcher = WebhookDispatcher(self._options, self._circuits, self._disable)
        return self._dispatcher

    async def _disable(self, endpoint: Endpoint, reason: str) -> None:
        await self._store.run(disable_endpoint(endpoint.id, "holdfast", reason))
        log.warning("webhook endpoint disabled", endpoint=endpoint.id, tenant=endpoint.tenant, reason=reason)
        await self.refresh()
