"""Declares relays, and runs those of a worker."""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast._log import get_logger
from holdfast.brokers.cloudevents import Mode
from holdfast.brokers.protocol import Target
from holdfast.brokers.relay import Relay, RelayRunner
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.event import event_type
from holdfast.core.failures.classify import Rules
from holdfast.core.message import DEFAULT_PRIORITY, Message
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.engine.worker.options import WorkerOptions, instance_id
from holdfast.runtime.runtime import Runtime
from holdfast.stores.event_log.log import EventFilter
from holdfast.stores.protocol import Store

log = get_logger("holdfast.relay")

_TRIES, _RELEASE_SECONDS = 3, 3.0


def declare(
    events: tuple[object, ...],
    *,
    name: str,
    to: Target,
    queue: str,
    from_now: bool,
    key: Callable[[Message], str | None] | None,
    mode: str,
    lease: Duration,
) -> Relay:
    """Checks the options of `hf.relay`."""
    check_name("consumer", name)
    if mode not in list(Mode):
        raise ConfigurationError(f"relay {name}: mode is {mode!r}; use {' or '.join(map(repr, map(str, Mode)))}")
    if not callable(getattr(to, "open", None)):
        raise ConfigurationError(
            f"relay {name}: to= is {to!r}; give a broker's topic, stream or queue, such as kafka.topic('orders')"
        )
    if key is not None and not callable(key):
        raise ConfigurationError(
            f"relay {name}: key is {key!r}; give a function of an event, such as lambda event: event.key"
        )
    patterns = [event_type(event).name if isinstance(event, type) else event for event in events]
    if wrong := [one for one in patterns if not isinstance(one, str)]:
        raise ConfigurationError(f"relay {name}: {wrong[0]!r} is neither an event class nor a name; give one of them")
    return Relay(
        name=name,
        wanted=EventFilter(tuple(dict.fromkeys(map(str, patterns)))),
        target=to,
        queue=check_name("queue", queue),
        priority=DEFAULT_PRIORITY,
        key=key,
        mode=Mode(mode),
        from_now=from_now,
        lease=to_timedelta(lease, name="lease"),
    )


def handler_of(relay: Relay, store: Callable[[], Store], retry: RetryPolicy) -> Handler:
    """The relay as a consumer: it sends messages that the broker refused, and those that an operator replays."""

    async def send(ctx: Context, _: Any) -> None:
        await relay.send_again(store(), ctx.message_id)

    return Handler(
        name=relay.name,
        kind=Kind.RELAY,
        function=send,
        queue=relay.queue,
        priority=relay.priority,
        retry=retry,
        rules=Rules(),
        takes_context=True,
    )


class Relays:
    """The relays in the queues of a worker."""

    def __init__(self, runtime: Runtime, options: WorkerOptions) -> None:
        wanted = [
            relay
            for relay in runtime.relays.values()
            if not options.suspects and (options.queues is None or relay.queue in options.queues)
        ]
        owner = instance_id()
        self._limit = options.idle_limit.total_seconds()
        self._all = [RelayRunner(runtime.store, relay, owner, options.generation) for relay in wanted]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(one.run(), name="holdfast-relay") for one in self._all]

    def wake(self) -> None:
        """Wakes the relays. Call it only in the thread of the loop."""
        for one in self._all:
            one.wake()

    async def caught_up(self, stop: asyncio.Event | None, *, patient: bool = True) -> None:
        """Waits until all committed events are relayed or `stop` is set, for at most the idle limit."""
        if not self._all:
            return
        relayed = asyncio.create_task(_all_of(self._all, patient))
        stopped = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({relayed, stopped}, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if not relayed.done() and not stopped.done():
                log.warning("worker stopped before idle", reason="a relay could not catch up")
        finally:
            relayed.cancel()
            stopped.cancel()

    async def stop(self) -> None:
        """Stops the relays. An event that was sent but not marked as sent is sent again."""
        tasks = set(self._tasks)
        # A broker's client may swallow a cancellation.
        for _ in range(_TRIES if tasks else 0):
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=_RELEASE_SECONDS)
            if not tasks:
                return


async def _all_of(relays: list[RelayRunner], patient: bool) -> None:
    await asyncio.gather(*(one.caught_up(patient=patient) for one in relays))
