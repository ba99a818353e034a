"""The blocking twins of an app's methods."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.core.retry import RetryPolicy
from holdfast.stores.messages.publish import Published

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


class SyncHoldfast:
    """`hf.sync`: the same names, for plain functions and blocking connections."""

    def __init__(self, app: "Holdfast") -> None:
        self._app = app

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
        message = self._app._producer.build(
            event, payload, key=key, headers=headers, occurred_at=occurred_at, retry=retry, validate=validate
        )
        return self._app._publish_sync([message], conn)[0]

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
        messages = self._app._many(events, conn, headers=headers, retry=retry, validate=validate)
        return self._app._publish_sync(messages, conn, "hf.publish_many")
