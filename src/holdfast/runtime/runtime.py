"""The parts of an app, by name."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.brokers.relay import Relay
from holdfast.core.failures.classify import Rules
from holdfast.core.message import NewMessage
from holdfast.engine.handlers.context import Publisher
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.alert import Alerts
from holdfast.engine.telemetry.meter import Meter
from holdfast.engine.telemetry.tracing import Tracing
from holdfast.engine.worker.deps import Probe
from holdfast.idempotency.dedupe import Dedupe
from holdfast.produce.producer import Producer
from holdfast.runtime.ambient_transaction import AMBIENT, AmbientTransaction
from holdfast.runtime.brokers.source import BrokerSource
from holdfast.runtime.commit_notifier import CommitNotifier
from holdfast.runtime.completion import CompletionWatcher
from holdfast.runtime.reactions import Reactions
from holdfast.runtime.redactions import DeclaredRedactions
from holdfast.runtime.registration import Registration
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.groups.group import NewGroup, start_group
from holdfast.stores.messages.publish import LazyMessages, Messages, Published
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.fork import Origin, fork_run
from holdfast.stores.workflows.run import NewRun, start_runs

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An app on one store. `publisher` is the app, for handlers that publish."""

    store: Store
    producer: Producer
    registration: Registration
    reactions: Reactions
    notifier: CommitNotifier
    completions: CompletionWatcher
    dedupe: Dedupe
    publisher: Publisher
    handlers: Mapping[str, Handler]
    broker_sources: Mapping[str, BrokerSource]
    relays: Mapping[str, Relay]
    rules: Rules
    probes: Mapping[str, Probe]
    alerts: Alerts
    meter: Meter
    tracing: Tracing
    redactions: DeclaredRedactions
    generation: int
    max_payload: int
    retention: timedelta | None
    limited_queues: Set[str]
    """The queues with a limit over all workers."""
    ambient: AmbientTransaction | None = None
    """The transaction that calls without a connection join, if one is open."""

    def build_many(self, events: Sequence[object], conn: Any, **options: Any) -> Messages:
        """Messages for `publish`, built while they are written if nothing needs them earlier."""
        return self.producer.build_many(events, at_once=conn is not None or self.reactions.declared, **options)

    async def publish(self, messages: Messages, conn: Any, call: str = "hf.publish") -> list[Published]:
        """Writes messages in the caller's transaction, or with `conn=None` in a separate one, inside a span.

        Reactions start after the commit. `call` is the method that the user called, for error messages.
        """
        if conn is AMBIENT:
            if self.ambient is not None:
                return await self.ambient.call(self.publish_sync, messages, conn, call)
            conn = None
        bound = None if conn is None else await self.producer.bind(conn, call)
        with self.tracing.publishing(messages) as messages:
            published = await self.producer.publish(messages, bound)
        self.reactions.published(messages, published, bound)
        self.meter.published(len(published))
        return published

    def publish_sync(self, messages: Messages, conn: Any, call: str = "hf.publish") -> list[Published]:
        """`publish`, blocking."""
        if conn is AMBIENT:
            conn = None if self.ambient is None else self.ambient.connection()
        bound = None if conn is None else self.producer.bind_sync(conn, call)
        with self.tracing.publishing(messages) as messages:
            published = self.producer.publish_sync(messages, bound)
        self.reactions.published(messages, published, bound)
        self.meter.published(len(published))
        return published

    async def run(self, operation: Operation[T], conn: Any, call: str) -> T:
        """Runs an operation of the store in the caller's transaction, or with `conn=None` in a separate one."""
        if conn is AMBIENT:
            if self.ambient is not None:
                return await self.ambient.call(self.run_sync, operation, conn, call)
            conn = None
        bound = None if conn is None else await self.producer.bind(conn, call)
        await self.registration.prepare(None if bound is None else bound.adapter)
        if bound is None:
            return await self.store.run(operation)
        return await run_on_async(operation, self.store.dialect, bound.adapter)

    def run_sync(self, operation: Operation[T], conn: Any, call: str) -> T:
        """`run`, blocking."""
        if conn is AMBIENT:
            conn = None if self.ambient is None else self.ambient.connection()
        bound = None if conn is None else self.producer.bind_sync(conn, call)
        self.registration.prepare_sync(None if bound is None else bound.adapter)
        if bound is None:
            return self.store.run_sync(operation)
        return run_on(operation, self.store.dialect, bound.adapter)

    async def start_runs(self, runs: Sequence[NewRun], conn: Any, call: str) -> list[Published]:
        """Starts runs of workflows in the caller's transaction, or with `conn=None` in a separate one."""
        if conn is AMBIENT:
            if self.ambient is not None:
                return await self.ambient.call(self.start_runs_sync, runs, conn, call)
            conn = None
        bound = None if conn is None else await self.producer.bind(conn, call)
        with self.tracing.publishing([run.message for run in runs]) as messages:
            published = await self.producer.start(start_runs(_with_messages(runs, messages)), bound)
        self.meter.published(len(published))
        return published

    def start_runs_sync(self, runs: Sequence[NewRun], conn: Any, call: str) -> list[Published]:
        """`start_runs`, blocking."""
        if conn is AMBIENT:
            conn = None if self.ambient is None else self.ambient.connection()
        bound = None if conn is None else self.producer.bind_sync(conn, call)
        with self.tracing.publishing([run.message for run in runs]) as messages:
            published = self.producer.start_sync(start_runs(_with_messages(runs, messages)), bound)
        self.meter.published(len(published))
        return published

    async def fork_run(self, start: NewMessage, origin: Origin, conn: Any) -> Published:
        """Forks a run of a workflow in the caller's transaction, or with `conn=None` in a separate one."""
        if conn is AMBIENT:
            if self.ambient is not None:
                return await self.ambient.call(self.fork_run_sync, start, origin, conn)
            conn = None
        bound = None if conn is None else await self.producer.bind(conn, "run.fork")
        with self.tracing.publishing([start]) as messages:
            published = await self.producer.start(fork_run(_single(messages), origin), bound)
        self.meter.published(1)
        return published

    def fork_run_sync(self, start: NewMessage, origin: Origin, conn: Any) -> Published:
        """`fork_run`, blocking."""
        if conn is AMBIENT:
            conn = None if self.ambient is None else self.ambient.connection()
        bound = None if conn is None else self.producer.bind_sync(conn, "run.fork")
        with self.tracing.publishing([start]) as messages:
            published = self.producer.start_sync(fork_run(_single(messages), origin), bound)
        self.meter.published(1)
        return published

    async def start_group(self, group: NewGroup, conn: Any, call: str) -> Published:
        """Starts a group of jobs in the caller's transaction, or with `conn=None` in a separate one."""
        if conn is AMBIENT:
            if self.ambient is not None:
                return await self.ambient.call(self.start_group_sync, group, conn, call)
            conn = None
        bound = None if conn is None else await self.producer.bind(conn, call)
        with self.tracing.publishing([member.message for member in group.members]) as messages:
            started = start_group(_traced(group, messages), self.producer.fanout, own=bound is None)
            published = await self.producer.start(started, bound)
        self.meter.published(len(group.members) if published.created else 0)
        return published

    def start_group_sync(self, group: NewGroup, conn: Any, call: str) -> Published:
        """`start_group`, blocking."""
        if conn is AMBIENT:
            conn = None if self.ambient is None else self.ambient.connection()
        bound = None if conn is None else self.producer.bind_sync(conn, call)
        with self.tracing.publishing([member.message for member in group.members]) as messages:
            started = start_group(_traced(group, messages), self.producer.fanout, own=bound is None)
            published = self.producer.start_sync(started, bound)
        self.meter.published(len(group.members) if published.created else 0)
        return published


def _traced(group: NewGroup, messages: Messages) -> NewGroup:
    """The group with the messages that tracing returned: they carry the trace of the call."""
    assert not isinstance(messages, LazyMessages)
    return group._replace(
        members=[member._replace(message=message) for member, message in zip(group.members, messages, strict=True)]
    )


def _single(messages: Messages) -> NewMessage:
    assert not isinstance(messages, LazyMessages)
    return messages[0]


def _with_messages(runs: Sequence[NewRun], messages: Messages) -> list[NewRun]:
    """The runs with the messages that tracing returned: they carry the trace of the start."""
    assert not isinstance(messages, LazyMessages)
    return [run._replace(message=message) for run, message in zip(runs, messages, strict=True)]
