"""Reactions: functions that run in the publishing process after a commit."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast._log import get_logger
from holdfast.core.events import payload
from holdfast.core.events.event import VERSION_HEADER, EventType, version_of
from holdfast.core.events.pattern import matches
from holdfast.core.message import DEFAULT_QUEUE, NewMessage
from holdfast.core.redaction.redact import hiding
from holdfast.core.telemetry.correlation import correlate
from holdfast.engine.execution.invocation import MessageInvocation
from holdfast.engine.execution.threads import Threads
from holdfast.engine.handlers.context import Context, Publisher
from holdfast.engine.telemetry.log_fields import error_fields, log_fields
from holdfast.produce.commit import BoundConnection
from holdfast.runtime.commit_watch import CommitWatch
from holdfast.runtime.loop import running_loop
from holdfast.runtime.redactions import DeclaredRedactions
from holdfast.stores.messages.publish import LazyMessages, Messages, Published
from holdfast.stores.protocol import Store

log = get_logger("holdfast.reaction")


@dataclass(frozen=True, slots=True)
class Reaction:
    """A function that runs in the publishing process, right after the commit; nothing is stored for it."""

    patterns: tuple[str, ...]
    event: EventType | None
    function: Callable[..., Any]
    takes_context: bool


class Reactions:
    """Runs an app's reactions. An error is logged and does not affect the committed event."""

    def __init__(
        self, declared: Sequence[Reaction], publisher: Publisher, store: Store, redactions: DeclaredRedactions
    ) -> None:
        self._declared, self._publisher, self._store, self._redactions = declared, publisher, store, redactions
        self._running: set[asyncio.Task[None]] = set()
        self._commits = CommitWatch(store)

    @property
    def declared(self) -> bool:
        """Whether the app has reactions."""
        return bool(self._declared)

    def published(self, messages: Messages, published: Sequence[Published], bound: BoundConnection[Any] | None) -> None:
        """Starts the reactions to new messages once they are committed. A connection without a commit hook is polled."""
        if isinstance(messages, LazyMessages) or not self._declared:
            return
        new = {one.id for one in published if one.created}
        calls = [
            (reaction, message)
            for message in messages
            if not message.addressed and message.id in new
            for reaction in self._declared
            if any(matches(pattern, message.type) for pattern in reaction.patterns)
        ]
        if not calls:
            return
        if bound is None:
            self._start(calls)
        elif not bound.after_commit(lambda: self._start(calls)):
            # One message at a time: a rollback to a savepoint may remove some of them.
            for id in dict.fromkeys(message.id for _, message in calls):
                self._commits.add(id, partial(self._start, [call for call in calls if call[1].id == id]))

    async def finish(self) -> None:
        """Starts the reactions to commits that were not detected yet, before the store is closed."""
        if self._commits:
            await Threads.run_once("holdfast-reactions", self._commits.finish)

    def _start(self, calls: list[tuple[Reaction, NewMessage]]) -> None:
        if not calls:
            return
        if (loop := running_loop()) is None:
            if any(inspect.iscoroutinefunction(reaction.function) for reaction, _ in calls):
                threading.Thread(target=lambda: asyncio.run(self._run(calls)), name="holdfast-reaction").start()
                return
            for reaction, message in calls:
                self._call_plain(reaction, message)
            return
        task = loop.create_task(self._run(calls))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, calls: list[tuple[Reaction, NewMessage]]) -> None:
        for reaction, message in calls:
            if not inspect.iscoroutinefunction(reaction.function):
                await asyncio.to_thread(self._call_plain, reaction, message)
                continue
            with self._hiding(message):
                try:
                    with correlate(**message.headers):
                        await reaction.function(*self._arguments(reaction, message))
                except Exception as error:  # noqa: BLE001
                    self._failed(reaction, message, error)

    def _call_plain(self, reaction: Reaction, message: NewMessage) -> None:
        with self._hiding(message):
            try:
                with correlate(**message.headers):
                    reaction.function(*self._arguments(reaction, message))
            except Exception as error:  # noqa: BLE001
                self._failed(reaction, message, error)

    def _hiding(self, message: NewMessage) -> AbstractContextManager[None]:
        return hiding(self._redactions.redactor.hide(message.type, message.payload))

    def _failed(self, reaction: Reaction, message: NewMessage, error: Exception) -> None:
        known = log_fields(message.headers) | {
            "reaction": reaction.function.__qualname__,
            "event_id": str(message.id),
            "event_type": message.type,
        }
        log.error("reaction failed", **known | error_fields(error))

    def _arguments(self, reaction: Reaction, message: NewMessage) -> tuple[Any, ...]:
        # Decoded from JSON, as for a consumer: the function works unchanged as a consumer.
        if reaction.event is None:
            body = payload.decode(message.payload)
        else:
            # An event from a broker may have an older version than the class.
            is_versioned = VERSION_HEADER in message.headers
            version = version_of(message.headers) if is_versioned else reaction.event.version
            body = reaction.event.read(message.payload, version)
        if not reaction.takes_context:
            return (body,)
        invocation = MessageInvocation.of(message, reaction.function.__name__, DEFAULT_QUEUE)
        return (Context(invocation, "in-process", self._store, self._publisher, 1), body)
