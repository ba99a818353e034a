"""`hf.webhooks`: adding endpoints, and serving them in a worker as consumers that come and go at run time."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable, TerminalError
from holdfast.core.failures.classify import Rules
from holdfast.core.message import TENANT_HEADER
from holdfast.core.retry import RetryPolicy
from holdfast.engine.context import Context
from holdfast.engine.handler import Handler, Kind
from holdfast.outbound.webhooks.circuits import EndpointCircuits
from holdfast.outbound.webhooks.endpoint import Added, new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import (
    Endpoint,
    add_endpoint,
    disable_endpoint,
    endpoints,
    living_workers,
    serve_consumers,
)

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.outbound.webhooks.dispatcher import WebhookDispatcher

_NO_RULES = Rules()

log = get_logger("holdfast.webhooks")

_COST_FACTOR = 20.0


class EndpointOptions(TypedDict, total=False):
    """What an endpoint can say of itself beside its address and events.

    `tenant` limits it to events published with the header `tenant`. `rate` is requests per second by all workers
    together, `concurrency` how many one worker makes at once.
    """

    tenant: str | None
    secret: str | None
    headers: Mapping[str, str] | None
    rate: float | None
    concurrency: int
    retry: RetryPolicy | None
    queue: str
    priority: int


class Webhooks:
    """Endpoints of other people that events are posted to. What operators do with them is in `hf.ops`."""

    def __init__(self, app: "Holdfast", options: WebhookOptions | None) -> None:
        self._app, self._options = app, options

    @property
    def options(self) -> WebhookOptions:
        """As given to the app, else what the environment allows."""
        return self._options or WebhookOptions.from_environment()

    @property
    def sync(self) -> "SyncWebhooks":
        return SyncWebhooks(self._app, self)

    async def add(
        self,
        url: str,
        *,
        events: Sequence[str],
        conn: Any,
        actor: str | None = None,
        **options: Unpack[EndpointOptions],
    ) -> Added:
        """Stores an endpoint that gets every event of these types or patterns from now on, in `conn`'s transaction.

        `conn=None` commits on its own. Running workers serve it within about a second. The secret in what is returned
        is shown this once: hand it to whoever receives.
        """
        endpoint = new_endpoint(url, events=events, options=self.options, **options)
        operation, app = add_endpoint(endpoint, actor or f"app:{self._app.source}"), self._app
        if conn is None:
            await app._prepare(None)
            await app.store.run(operation)
        else:
            joined = await app._producer.bind(conn, "hf.webhooks.add")
            await app._prepare(joined)
            app._producer.doubt(endpoint.consumer)
            await run_on_async(operation, app.store.dialect, joined)
        return Added(endpoint.id, endpoint.secrets[0])


class SyncWebhooks:
    """The blocking twins."""

    def __init__(self, app: "Holdfast", webhooks: Webhooks) -> None:
        self._app, self._webhooks = app, webhooks

    def add(
        self,
        url: str,
        *,
        events: Sequence[str],
        conn: Any,
        actor: str | None = None,
        **options: Unpack[EndpointOptions],
    ) -> Added:
        """`Webhooks.add`, blocking."""
        endpoint = new_endpoint(url, events=events, options=self._webhooks.options, **options)
        operation, app = add_endpoint(endpoint, actor or f"app:{self._app.source}"), self._app
        if conn is None:
            app._prepare_sync(None)
            app.store.run_sync(operation)
        else:
            joined = app._producer.bind_sync(conn, "hf.webhooks.add")
            app._prepare_sync(joined)
            app._producer.doubt(endpoint.consumer)
            run_on(operation, app.store.dialect, joined)
        return Added(endpoint.id, endpoint.secrets[0])


class _WorkerHandlers(Mapping[str, Handler]):
    """The handlers of an app, and one for each endpoint, made at its first use: 100,000 would delay a worker's start."""

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
    """A worker's handlers with one for each endpoint; a duty that looks for new endpoints and changed ones."""

    interval = timedelta(seconds=1)

    def __init__(self, app: "Holdfast") -> None:
        self._store, self._options = app.store, app.webhooks.options
        self._known: dict[str, Endpoint] = {}
        self.handlers = _WorkerHandlers(app.handlers, self._handler)
        self._dispatcher: WebhookDispatcher | None = None
        self._circuits = EndpointCircuits(app.store)
        self._due = 0.0
        self._announced: tuple[str, list[str]] | None = None

    async def load(self) -> None:
        """Looks for the first time, before the worker starts: one that runs until idle must know all its work."""
        with contextlib.suppress(StoreUnavailable):
            await self.refresh()

    async def perform(self, worker: str) -> None:
        """Looks for changes, not more often than is worth its cost, and says in the worker's row what it serves."""
        if time.monotonic() >= self._due:
            await self.refresh()
        if self.handlers.endpoints and self._announced != (announced := (worker, sorted(self.handlers))):
            await self._store.run(serve_consumers(*announced))
            self._announced = announced

    async def refresh(self) -> None:
        """Takes over the endpoints as they are stored now."""
        started = time.monotonic()
        found = await self._store.run(endpoints())
        if found and find_spec("httpcore2") is None:
            if not self._due:
                log.error(
                    "webhook client missing", endpoints=len(found), hint="install holdfast[http] to send webhooks"
                )
            found = []
        self._known = {endpoint.consumer: endpoint for endpoint in found}
        self.handlers.endpoints.update(self._known)
        if found:
            self._the_dispatcher()
        if self._dispatcher is not None:
            self._dispatcher.serve(found, await self._store.run(living_workers()))
            asked_at = time.monotonic()
            self._circuits.take(await self._store.run(breakers()), asked_at)
        ended = time.monotonic()
        self._due = ended + max(self.interval.total_seconds() / 2, _COST_FACTOR * (ended - started))

    async def close(self) -> None:
        """Closes what is open."""
        if self._dispatcher is not None:
            await self._dispatcher.close()

    async def _deliver(self, ctx: Context, payload: object) -> None:
        from holdfast.outbound.webhooks.dispatcher import WebhookEvent
        from holdfast.outbound.webhooks.sender import WebhookResponse

        def told(answer: WebhookResponse) -> None:
            ctx.detail = answer.to_json()

        event = WebhookEvent(
            id=str(ctx.message_id),
            type=ctx.type,
            occurred_at=ctx.occurred_at,
            payload=payload,
            tenant=ctx.headers.get(TENANT_HEADER),
        )
        known = self._known.get(ctx.consumer)
        if known is None:
            raise TerminalError(f"the endpoint of {ctx.consumer} is gone from the store")
        await self._the_dispatcher().deliver(known, event, told)

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
