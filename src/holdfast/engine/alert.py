"""Alerts on the transition to failed: a log line for each, and for each group of like failures one call out."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

log = structlog.get_logger("holdfast.alert")

_QUIET_SECONDS = 300.0
_MOST_GROUPS = 10_000


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
    alike: int = 1

    def fields(self) -> dict[str, object]:
        return {
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
        }


AlertHook = Callable[[DeadLetterAlert], object]


class Alerts:
    """Logs every dead letter once; calls the hooks once per group and quiet period, so that ten thousand
    failures are not ten thousand alerts. A hook that raises is logged and stops nothing."""

    def __init__(self, hooks: tuple[AlertHook, ...] = (), quiet_seconds: float = _QUIET_SECONDS) -> None:
        self._hooks, self._quiet = hooks, quiet_seconds
        self._groups: dict[tuple[str, str], tuple[float, int]] = {}

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
            try:
                hook(replace(alert, alike=alike))
            except Exception as error:  # noqa: BLE001
                log.warning("alert hook failed", hook=getattr(hook, "__qualname__", repr(hook)), error=repr(error))


def sentry_hook(alert: DeadLetterAlert) -> None:
    """Sends the alert to Sentry, grouped by fingerprint; needs `holdfast[sentry]` and an initialised SDK."""
    import sentry_sdk

    with sentry_sdk.new_scope() as scope:
        scope.fingerprint = [alert.target, alert.fingerprint]
        scope.set_context("holdfast", alert.fields() | {"alike": alert.alike})
        sentry_sdk.capture_message(f"dead letter: {alert.target}: {alert.error_type}", level="error", scope=scope)
