"""The blocking methods of an app."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.app.context_manager import NoContextManager
from holdfast.app.jobs.job_handle import wait_for_result
from holdfast.core.events.payload import decode
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.arguments import requires_conn
from holdfast.core.values.duration import Duration
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.publish import Published


class SyncHoldfast(NoContextManager):
    """`hf.sync`: the same names, for plain functions and blocking connections."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    @requires_conn
    def publish(
        self,
        event: object,
        payload: object = None,
        /,
        *,
        conn: Any,
        key: str | None = None,
        headers: Mapping[str, object] | None = None,
        occurred_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        validate: bool | None = None,
    ) -> Published:
        """`Holdfast.publish`, blocking."""
        runtime = self._runtime()
        message = runtime.producer.build(
            event, payload, key=key, headers=headers, occurred_at=occurred_at, retry=retry, validate=validate
        )
        return runtime.publish_sync([message], conn)[0]

    @requires_conn
    def publish_many(
        self,
        events: Sequence[object],
        *,
        conn: Any,
        headers: Mapping[str, object] | None = None,
        retry: RetryPolicy | None = None,
        validate: bool | None = None,
    ) -> list[Published]:
        """`Holdfast.publish_many`, blocking."""
        runtime = self._runtime()
        messages = runtime.build_many(events, conn, headers=headers, retry=retry, validate=validate)
        return runtime.publish_sync(messages, conn, "hf.publish_many")

    def result(self, id: UUID, *, consumer: str | None = None, timeout: Duration | None = None) -> Any:
        """`Holdfast.result`, blocking."""
        runtime = self._runtime()
        return decode(runtime.completions.run_sync(wait_for_result(runtime, id, consumer, timeout)))
