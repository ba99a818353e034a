"""The transition to failed: one log line each, and the hooks called once for each group of like failures."""

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, RetryPolicy, TerminalError, correlate
from holdfast.alerts import DeadLetterAlert, sentry_hook
from holdfast.core.delivery import Status
from holdfast.engine.telemetry.alert import Alerts
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, eventually, logged, statuses, working


def fail(hf: Holdfast, **given: Any) -> Any:
    """A job that always fails at once, with the text it is given."""

    @hf.job(retry=RetryPolicy.none(), **given)
    async def work(text: str = "boom") -> None:
        raise ConnectionError(text)

    return work


async def test_every_dead_letter_is_one_log_line_with_all_that_is_known(hf: Holdfast, log: Log) -> None:
    work = fail(hf, queue="mail")
    with correlate(request_id="r-1"):
        published = await work.enqueue("no route")
    await drain(hf)
    (line,) = logged(log, "dead letter")
    (dead,) = await all_of(hf)
    expected = {
        "log_level": "error",
        "event_id": str(published.id),
        "dlq_id": str(dead.id),
        "event_type": "job.work",
        "source": "app",
        "consumer": "work",
        "handler": "work",
        "queue": "mail",
        "error": "no route",
        "error_type": "ConnectionError",
        "fingerprint": dead.fingerprint,
        "attempt": 1,
        "max_attempts": 1,
        "operation": "work",
        "change": "dead_letter",
        "retryable": False,
        "request_id": "r-1",
    }
    assert {name: line[name] for name in expected} == expected


async def test_hooks_are_called_once_for_each_group_and_every_letter_is_logged(make_app: MakeApp, log: Log) -> None:
    alerts: list[DeadLetterAlert] = []
    hf = make_app(alerts=[alerts.append])
    work = fail(hf)

    @hf.job(retry=RetryPolicy.none())
    async def other() -> None:
        raise TerminalError("something else")

    for n in range(5):
        await work.enqueue(f"server {n} is down")
    await other.enqueue()
    await drain(hf)
    assert len(logged(log, "dead letter")) == 6
    assert sorted((alert.target, alert.alike) for alert in alerts) == [("other", 1), ("work", 1)]


def letter(fingerprint: str = "abc", target: str = "work") -> DeadLetterAlert:
    return DeadLetterAlert(
        event_id=UUID(int=1),
        delivery_id=UUID(int=2),
        event_type="job.work",
        source="app",
        target=target,
        queue="default",
        handler="work",
        last_error="boom",
        error_type="RuntimeError",
        fingerprint=fingerprint,
        attempts=1,
    )


async def test_after_a_quiet_time_a_hook_is_received_how_many_there_were_since() -> None:
    received: list[tuple[str, int]] = []
    alerts = Alerts((lambda alert: received.append((alert.target, alert.alike)),), quiet_seconds=0.2)
    for _ in range(4):
        alerts.dead(letter())
    await eventually(lambda: len(received) == 2)
    alerts.dead(letter())
    alerts.dead(letter(target="another consumer"))
    await eventually(lambda: len(received) == 4)
    assert received == [("work", 1), ("work", 3), ("another consumer", 1), ("work", 1)]


async def test_a_hook_that_raises_or_hangs_stops_neither_work_nor_other_hooks(make_app: MakeApp, log: Log) -> None:
    release, received = threading.Event(), threading.Event()

    def broken(alert: DeadLetterAlert) -> None:
        raise ZeroDivisionError("hook is broken")

    def hangs(alert: DeadLetterAlert) -> None:
        release.wait(20)

    async def awaited(alert: DeadLetterAlert) -> None:
        await asyncio.sleep(0)
        received.set()

    hf = make_app(alerts=[broken, hangs, awaited])
    work = fail(hf)

    @hf.job()
    async def well() -> None: ...

    await work.enqueue()
    async with working(hf):
        await eventually(received.is_set)
        await well.enqueue()
        await eventually(lambda: _well(hf))
        release.set()
    (line,) = logged(log, "alert hook failed")
    assert "hook is broken" in line["error"]


async def test_a_hook_is_called_only_after_the_dead_letter_is_stored(make_app: MakeApp) -> None:
    found: list[list[Status]] = []

    async def look(alert: DeadLetterAlert) -> None:
        found.append(await statuses(hf))

    hf = make_app(alerts=[look])
    work = fail(hf)
    await work.enqueue()
    await drain(hf)
    assert found == [[Status.FAILED]]


async def test_groups_are_forgotten_before_they_are_too_many(log: Log) -> None:
    alerts = Alerts()
    for n in range(10_050):
        alerts.dead(letter(fingerprint=str(n)))
    assert len(alerts._groups) <= 10_000


async def test_sentry_gets_one_event_for_each_group_with_everything_in_it(make_app: MakeApp) -> None:
    sentry = pytest.importorskip("sentry_sdk")
    sent: list[dict[str, Any]] = []

    class Kept(sentry.transport.Transport):  # type: ignore[name-defined, misc]
        def capture_envelope(self, envelope: Any) -> None:
            if (event := envelope.get_event()) is not None:
                sent.append(event)

    sentry.init(dsn="https://key@sentry.invalid/1", transport=Kept, default_integrations=False)
    try:
        hf = make_app(alerts=[sentry_hook])
        work = fail(hf)
        with correlate(request_id="r-1"):
            for _ in range(3):
                await work.enqueue("no route")
        await drain(hf)
    finally:
        sentry.init(default_integrations=False)
    (event,) = sent
    (dead, *_) = await all_of(hf)
    assert event["message"] == "dead letter: work: ConnectionError"
    assert (event["level"], event["fingerprint"]) == ("error", ["work", dead.fingerprint])
    context = event["contexts"]["holdfast"]
    assert (context["consumer"], context["error"], context["request_id"]) == ("work", "no route", "r-1")
    assert context["event_type"] == "job.work"


async def _well(hf: Holdfast) -> bool:
    return await statuses(hf, "well") == [Status.DELIVERED]
