"""The declarations of an app or router: handlers, sources, relays and workflows, and how an app includes a router's."""

from dataclasses import replace
from datetime import timedelta

from holdfast.app.declaration.flow_options import check_key_is_public
from holdfast.brokers.relay import Relay
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.event import EventType, EventTypes
from holdfast.core.flow import FlowSettings
from holdfast.core.redaction.redact import Redaction
from holdfast.core.retry import RetryPolicy
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.maintenance.cron import Schedule
from holdfast.engine.workflows.declaration import WorkflowDeclaration
from holdfast.runtime.brokers.ingestion import check_loops
from holdfast.runtime.brokers.source import BrokerSource
from holdfast.runtime.brokers.streams import reprocess_raw
from holdfast.runtime.reactions import Reaction
from holdfast.runtime.runtime import Runtime


class Declarations:
    """What an app or a router declares, by name. A router passes its declarations on to the app that includes it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.cron_schedules: dict[str, Schedule] = {}
        self.reactions: list[Reaction] = []
        self.relays: dict[str, Relay] = {}
        self.broker_sources: dict[str, BrokerSource] = {}
        self.workflows: dict[str, WorkflowDeclaration] = {}
        self.event_types = EventTypes()
        self._parent: Declarations | None = None
        self._defaulted: set[str] = set()

    def include(self, router: "Declarations") -> None:
        """Adds the present and later declarations of a router; its jobs can be enqueued once it belongs to an app.

        A handler without a retry policy gets the policy of its queue here.
        """
        if not isinstance(router, Declarations):
            raise ConfigurationError(f"include() got {router!r}; give a Router")
        self.event_types.include(router.event_types)
        for workflow in router.workflows.values():
            self._take_workflow(workflow)
        for name in list(router.handlers):
            self._take(router, name)
        for reaction in router.reactions:
            self._take_reaction(reaction)
        router._parent = self

    def _take(self, router: "Declarations", name: str) -> None:
        handler = router.handlers[name]
        if name in router._defaulted:
            self._defaulted.add(name)
            handler = replace(handler, retry=self._default_retry(handler.queue))
        if name not in router.broker_sources or router.broker_sources[name].events is not None:
            self._declare_event(handler.event)
        self._add(handler)
        if name in router.cron_schedules:
            self.cron_schedules[name] = router.cron_schedules[name]
        if name in router.relays:
            self.relays[name] = router.relays[name]
        if name in router.broker_sources:
            self.broker_sources[name] = router.broker_sources[name]
        self._check_ingests()
        self._declared(name)

    def _take_reaction(self, reaction: Reaction) -> None:
        self._declare_event(reaction.event)
        if reaction not in self.reactions:
            self.reactions.append(reaction)
        if self._parent is not None:
            self._parent._take_reaction(reaction)

    def _take_workflow(self, workflow: WorkflowDeclaration) -> None:
        if self.workflows.setdefault(workflow.name, workflow) is not workflow:
            raise ConfigurationError(
                f"two workflows are named {workflow.name!r}; give one of them another name, or use the same object"
            )
        if self._parent is not None:
            self._parent._take_workflow(workflow)

    def _declared(self, name: str) -> None:
        """Passes a new handler to the router or app that includes this one."""
        if self._parent is not None:
            self._parent._take(self, name)

    def _declare_event(self, known: EventType | None) -> None:
        if known is not None:
            self.event_types.add(known)

    def _add(self, handler: Handler) -> None:
        known = self.handlers.get(handler.name)
        if known is not None and known.function is not handler.function:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r} ({known.function.__qualname__} and "
                f"{handler.function.__qualname__}); give one of them another name="
            )
        if handler.keep is None and (keep := self._default_keep(handler.queue)) is not None:
            handler = replace(handler, keep=keep)
        self.handlers[handler.name] = handler

    def _check_ingests(self) -> None:
        check_loops(self.broker_sources, self.relays.values())
        for name, source in self.broker_sources.items():
            if source.events is not None:
                flow = FlowSettings(key=source.events.key)
                check_key_is_public(replace(self.handlers[name], patterns=source.patterns, flow=flow), self._redacted)

    def _default_keep(self, queue: str) -> timedelta | None:
        return None

    @property
    def _redacted(self) -> frozenset[Redaction]:
        """The secret fields that the app declares."""
        return frozenset()

    def _default_retry(self, queue: str) -> RetryPolicy:
        return RetryPolicy.exponential()

    @property
    def _runtime(self) -> Runtime:
        if self._parent is None:
            raise ConfigurationError("this router is not part of an app yet; call hf.include(router) first")
        return self._parent._runtime

    async def _reprocess_raw(self, context: Context) -> None:
        await reprocess_raw(self._runtime, context)
