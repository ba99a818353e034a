"""Reactions: functions that run in the publishing process, after the commit and never without it."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from holdfast._log import get_logger
from holdfast.app.commit_watch import CommitWatch
from holdfast.app.loop import running_loop
from holdfast.app.redaction import DeclaredRedactions
from holdfast.app.router import Reaction
from holdfast.core.events import payload
from holdfast.core.events.pattern import matches
from holdfast.core.message import DEFAULT_QUEUE, NewMessage
from holdfast.core.redaction.redact import hiding
from holdfast.core.telemetry.correlation import correlate
from holdfast.engine.context import Context, Publisher
from holdfast.engine.invocation import MessageInvocation
from holdfast.engine.log_fields import error_fields, log_fields
from holdfast.engine.threads import Threads
from holdfast.produce.commit import after_commit
from holdfast.stores.messages.publish import LazyMessages, Messages, Published
from holdfast.stores.protocol import Store

log = get_logger("holdfast.reaction")


class Reactions:
    """Runs an app's reactions. One that raises is logged; the event is committed and stays so."""

    def __init__(
        self, declared: Sequence[Reaction], publisher: Publisher, store: Store, secrets: DeclaredRedactions
    ) -> None:
        self._declared, self._publisher, self._store, self._redactions = declared, publisher, store, secrets
        self._running: set[asyncio.Task[None]] = set()
        self._commits = CommitWatch(store)

    def plan(self, messages: Messages, conn: Any) -> Callable[[Sequence[Published]], None]:
        """What to call once the messages are written. Where a connection does not tell its commit, it is watched for."""
        if isinstance(messages, LazyMessages) or not self._declared:
            return lambda _: None
        wanted = [
            (reaction, message)
            for message in messages
            if not message.addressed
            for reaction in self._declared
            if any(matches(pattern, message.type) for pattern in reaction.patterns)
        ]
        if not wanted:
            return lambda _: None
        calls: list[tuple[Reaction, NewMessage]] = []
        told = conn is not None and after_commit(conn, lambda: self._start(calls))

        def written(published: Sequence[Published]) -> None:
            new = {one.id for one in published if one.created}
            calls.extend((reaction, message) for reaction, message in wanted if message.id in new)
            if conn is None:
                self._start(calls)
            elif not told:
                # One message at a time: a savepoint may take some of them back.
                for id in dict.fromkeys(message.id for _, message in calls):
                    self._commits.add(id, partial(self._start, [call for call in calls if call[1].id == id]))

        return written

    async def finish(self) -> None:
        """Starts what was committed by now and was not noticed yet; for when the store is closed."""
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
        # Through JSON, as a consumer would get it: moving up to one changes nothing.
        body = (
            payload.decode(message.payload)
            if reaction.event is None
            else reaction.event.read(message.payload, reaction.event.version)
        )
        if not reaction.takes_context:
            return (body,)
        invocation = MessageInvocation.of(message, reaction.function.__name__, DEFAULT_QUEUE)
        return (Context(invocation, "in-process", self._store, self._publisher, 1), body)
