"""Alerts about dead letters: one log line for each, and one hook call for each group of similar failures."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.engine.execution.threads import Threads
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.telemetry.repeats import Repeats
from holdfast.stores.admin.alert import AlertDecision

log = get_logger("holdfast.alert")

_QUIET_SECONDS = 300.0
_MOST_GROUPS = 10_000
_PATIENCE = 5.0
_MOMENT = 0.01
_SHOWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterAlert:
    """A delivery that became a dead letter. `alike` counts the dead letters of its group since the last hook call."""

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
    stack_trace: str = ""
    correlation: Mapping[str, object] = field(default_factory=dict)
    alike: int = 1

    @property
    def text(self) -> str:
        """Text for people: what failed, how many similar failures, and what to do next."""
        tries = f"{self.attempts} of {self.max_attempts}" if self.max_attempts else str(self.attempts)
        many = "a dead letter" if self.alike == 1 else f"{self.alike:,} dead letters alike"
        return (
            f"{self.target}: {many}, the latest {self.event_type} from {self.source} at attempt {tries}: "
            f"{self.error_type}: {self.last_error[:_SHOWN]}\nlook: holdfast dlq show {self.delivery_id}"
        )

    def fields(self) -> dict[str, object]:
        """The alert with the field names of log lines, including its correlation ids."""
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
            "operation": self.handler,
            "change": "dead_letter",
            "retryable": False,
            **({"stack_trace": self.stack_trace} if self.stack_trace else {}),
        }


AlertHook = Callable[[DeadLetterAlert], object]
"""A function that takes one alert, plain (it runs in a thread) or async."""


Ask = Callable[[str, str, int, timedelta], Awaitable[AlertDecision]]
"""Decides whether this process calls the hooks; takes consumer, fingerprint, number of failures and quiet period."""


class _Group:
    """Similar failures that this process has seen."""

    __slots__ = ("alike", "asking", "last", "quiet_until")

    def __init__(self, last: DeadLetterAlert) -> None:
        self.last, self.alike, self.asking, self.quiet_until = last, 0, False, float("-inf")


class Alerts:
    """Logs dead letters, with repeats folded, and calls the hooks once per group and quiet period.

    Similar failures cause one call, also with several workers. Failures during the quiet period are reported when it
    ends. `ask` shares the quiet period with other workers and across restarts; while it fails, each
    process uses its own. A hook that hangs or raises stops nothing.
    """

    def __init__(
        self,
        hooks: tuple[AlertHook, ...] = (),
        quiet_seconds: float = _QUIET_SECONDS,
        ask: Ask | None = None,
        called: Callable[[], None] = lambda: None,
    ) -> None:
        self._hooks, self._quiet = hooks, timedelta(seconds=quiet_seconds)
        self._ask, self._called = ask, called
        self._groups: dict[tuple[str, str], _Group] = {}
        self._calling: set[asyncio.Task[None]] = set()
        self._threads = Threads("holdfast-alert")
        self.repeats = Repeats()
        """Folds repeated log lines about failures, for all workers of the app."""
        self.watchers: set[Callable[[DeadLetterAlert], None]] = set()
        """Called for every dead letter, without grouping. They must not block or raise."""

    def dead(self, alert: DeadLetterAlert) -> None:
        """Reports one dead letter. Call it only after the dead letter is durable."""
        self.repeats.log(log.error, "dead letter", alert.target, alert.fingerprint, alert.fields())
        for watcher in tuple(self.watchers):
            watcher(alert)
        if not self._hooks:
            return
        key = (alert.target, alert.fingerprint)
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            self._groups.clear()
        group = self._groups.setdefault(key, _Group(alert))
        group.last = alert
        group.alike += 1
        self._report_if_due(group)

    def _report_if_due(self, group: _Group, *, owed: bool = False) -> None:
        """Starts a report of the group, except in its quiet period, while a report is in progress, or without failures."""
        if group.asking or time.monotonic() < group.quiet_until or not (group.alike or owed):
            return
        alike, group.alike, group.asking = group.alike, 0, True
        self._start(self._report(group, group.last, alike))

    async def _report(self, group: _Group, alert: DeadLetterAlert, alike: int) -> None:
        turn = AlertDecision(True, alike, self._quiet)
        if self._ask is not None:
            try:
                turn = await self._ask(alert.target, alert.fingerprint, alike, self._quiet)
            except Exception as error:  # noqa: BLE001
                log.warning("alert coordination failed", **error_fields(error))
        quiet = turn.quiet.total_seconds()
        group.asking, group.quiet_until = False, time.monotonic() + quiet
        # Failures during the quiet period, or counted for another process, must be reported without a further failure.
        owed = not turn.tell and alike > 0
        asyncio.get_running_loop().call_later(quiet + _MOMENT, lambda: self._report_if_due(group, owed=owed))
        if turn.tell and turn.alike:
            self._called()
            for hook in self._hooks:
                self._start(self._call(hook, replace(alert, alike=turn.alike)))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)

    async def sent(self) -> None:
        """Writes the folded log lines, and waits for running hooks, for at most five seconds."""
        self.repeats.close()
        ends = time.monotonic() + _PATIENCE
        while self._calling and (left := ends - time.monotonic()) > 0:
            await asyncio.wait(self._calling, timeout=left)

    async def _call(self, hook: AlertHook, alert: DeadLetterAlert) -> None:
        try:
            # A plain hook may block on a network call: it runs in a thread that the end of the process does not wait for.
            answer = hook(alert) if inspect.iscoroutinefunction(hook) else await self._threads.run(hook, alert)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001
            log.warning("alert hook failed", hook=getattr(hook, "__qualname__", repr(hook)), **error_fields(error))


def sentry_hook(alert: DeadLetterAlert) -> None:
    """Sends the alert to Sentry, grouped by fingerprint; needs `holdfast[sentry]` and an initialized SDK."""
    import sentry_sdk

    with sentry_sdk.new_scope() as scope:
        scope.fingerprint = [alert.target, alert.fingerprint]
        scope.set_context("holdfast", alert.fields() | {"alike": alert.alike, "text": alert.text})
        sentry_sdk.capture_message(f"dead letter: {alert.target}: {alert.error_type}", level="error", scope=scope)


def webhook_hook(url: str, *, headers: Mapping[str, str] | None = None, timeout: Duration = 10) -> AlertHook:
    """A hook that posts each alert as JSON to `url`, an address of your own such as a chat's incoming webhook.

    Redirects are not followed: they would send the alert and `headers` to an address that was not configured.
    """
    seconds = to_timedelta(timeout, name="timeout").total_seconds()
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError("an alert webhook needs an http or https address")
    opener = build_opener(_RefuseRedirects)

    def post(alert: DeadLetterAlert) -> None:
        body = orjson.dumps({"event": "dead letter", "text": alert.text, "alike": alert.alike, **alert.fields()})
        request = Request(url, body, {"content-type": "application/json", **(headers or {})})  # noqa: S310
        with opener.open(request, timeout=seconds):
            pass

    return post


class _RefuseRedirects(HTTPRedirectHandler):
    """Leaves a redirect as it is: an HTTP error."""

    def redirect_request(self, *_: object) -> None:
        return None
