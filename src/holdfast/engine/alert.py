"""Alerts on the transition to failed: a log line for each, and for each group of like failures one call out."""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import UUID

import orjson
import structlog

from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError
from holdfast.engine.threads import Threads

log = structlog.get_logger("holdfast.alert")

_QUIET_SECONDS = 300.0
_MOST_GROUPS = 10_000
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterAlert:
    """One delivery that has just been dead-lettered; `alike` counts those of its group since the last call out."""

    event_id: UUID
    delivery_id: UUID
    event_type: str
    source: str
    target: str
    queue: str
    handler: str
    last_error: str
    error_type: str
    fingerprint: str
    attempts: int
    max_attempts: int | None = None
    correlation: Mapping[str, object] = field(default_factory=dict)
    alike: int = 1

    def fields(self) -> dict[str, object]:
        """All of it by the names that log lines use, its correlation ids included."""
        return {
            **self.correlation,
            "event_id": str(self.event_id),
            "dlq_id": str(self.delivery_id),
            "event_type": self.event_type,
            "source": self.source,
            "consumer": self.target,
            "queue": self.queue,
            "handler": self.handler,
            "error": self.last_error,
            "error_type": self.error_type,
            "fingerprint": self.fingerprint,
            "attempt": self.attempts,
            "max_attempts": self.max_attempts,
            "operation": "dead_letter",
            "retryable": False,
        }


AlertHook = Callable[[DeadLetterAlert], object]
"""A function of one alert, plain (it runs in a thread) or async."""


class Alerts:
    """Logs every dead letter once; calls the hooks once per group and quiet period, so that ten thousand
    failures are not ten thousand alerts. A hook that hangs or raises stops nothing."""

    def __init__(self, hooks: tuple[AlertHook, ...] = (), quiet_seconds: float = _QUIET_SECONDS) -> None:
        self._hooks, self._quiet = hooks, quiet_seconds
        self._groups: dict[tuple[str, str], tuple[float, int]] = {}
        self._calling: set[asyncio.Task[None]] = set()
        self._threads = Threads("holdfast-alert")

    def dead(self, alert: DeadLetterAlert) -> None:
        """Reports one dead letter. Call it only after the dead letter is durable."""
        log.error("dead letter", **alert.fields())
        group = (alert.target, alert.fingerprint)
        called_at, alike = self._groups.get(group, (float("-inf"), 0))
        alike += 1
        now = time.monotonic()
        if now - called_at < self._quiet:
            self._groups[group] = (called_at, alike)
            return
        if len(self._groups) >= _MOST_GROUPS:
            self._groups.clear()
        self._groups[group] = (now, 0)
        for hook in self._hooks:
            task = asyncio.get_running_loop().create_task(self._call(hook, replace(alert, alike=alike)))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)

    async def sent(self) -> None:
        """Waits for hooks that are being called, but not for ever."""
        if self._calling:
            await asyncio.wait(self._calling, timeout=_PATIENCE)

    async def _call(self, hook: AlertHook, alert: DeadLetterAlert) -> None:
        try:
            # A plain hook may well talk to somebody: nothing waits for it, not even the end of the process.
            answer = hook(alert) if inspect.iscoroutinefunction(hook) else await self._threads.run(hook, alert)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001
            log.warning("alert hook failed", hook=getattr(hook, "__qualname__", repr(hook)), error=repr(error))


def sentry_hook(alert: DeadLetterAlert) -> None:
    """Sends the alert to Sentry, grouped by fingerprint; needs `holdfast[sentry]` and an initialised SDK."""
    import sentry_sdk

    with sentry_sdk.new_scope() as scope:
        scope.fingerprint = [alert.target, alert.fingerprint]
        scope.set_context("holdfast", alert.fields() | {"alike": alert.alike})
        sentry_sdk.capture_message(f"dead letter: {alert.target}: {alert.error_type}", level="error", scope=scope)


def webhook_hook(url: str, *, headers: Mapping[str, str] | None = None, timeout: Duration = 10) -> AlertHook:
    """A hook that posts each alert as JSON to `url`, an address of your own such as a chat's incoming webhook."""
    seconds = to_timedelta(timeout, name="timeout").total_seconds()
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError("an alert webhook needs an http or https address")

    def post(alert: DeadLetterAlert) -> None:
        body = orjson.dumps({"event": "dead letter", "alike": alert.alike, **alert.fields()})
        request = Request(url, body, {"content-type": "application/json", **(headers or {})})  # noqa: S310
        with urlopen(request, timeout=seconds):  # noqa: S310
            pass

    return post
