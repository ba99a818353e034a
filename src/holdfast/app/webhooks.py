"""`hf.webhooks`: adding endpoints."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from holdfast.outbound.webhooks.endpoint import Added, EndpointOptions, new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.runtime.runtime import Runtime
from holdfast.stores.integrations.webhook import Endpoint, add_endpoint
from holdfast.stores.operation import Operation


class Webhooks:
    """Endpoints of other organizations, to which events are posted. The actions of operators on them are in `hf.ops`."""

    def __init__(self, runtime: Callable[[], Runtime], source: str, options: WebhookOptions | None) -> None:
        self._runtime, self._source, self._options = runtime, source, options

    @property
    def options(self) -> WebhookOptions:
        """The options given to the app, or those of the environment."""
        return self._options or WebhookOptions.from_environment()

    @property
    def sync(self) -> "SyncWebhooks":
        return SyncWebhooks(self)

    async def add(
        self,
        url: str,
        *,
        events: Sequence[str],
        conn: Any,
        actor: str | None = None,
        **options: Unpack[EndpointOptions],
    ) -> Added:
        """Stores an endpoint that receives every event of these types or patterns from now on, in `conn`'s transaction.

        `conn=None` commits in a separate transaction. Running workers serve the endpoint within about a second. The secret in
        the result is shown only once: pass it to the receiver.
        """
        endpoint, operation = self._new(url, events, actor, options)
        producer = self._runtime().producer
        bound = None if conn is None else await producer.bind(conn, "hf.webhooks.add")
        await producer.run(operation, bound, endpoint.consumer)
        return Added(endpoint.id, endpoint.secrets[0])

    def _new(
        self, url: str, events: Sequence[str], actor: str | None, options: EndpointOptions
    ) -> tuple[Endpoint, Operation[None]]:
        endpoint = new_endpoint(url, events=events, options=self.options, **options)
        return endpoint, add_endpoint(endpoint, actor or f"app:{self._source}")


class SyncWebhooks:
    """The blocking methods of `Webhooks`."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

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
        endpoint, operation = self._webhooks._new(url, events, actor, options)
        producer = self._webhooks._runtime().producer
        bound = None if conn is None else producer.bind_sync(conn, "hf.webhooks.add")
        producer.run_sync(operation, bound, endpoint.consumer)
        return Added(endpoint.id, endpoint.secrets[0])
