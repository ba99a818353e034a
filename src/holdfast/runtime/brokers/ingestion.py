"""Declares ingests: records of a broker that become events of the store."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from holdfast.brokers.ingestion import EventRule
from holdfast.brokers.protocol import Source
from holdfast.brokers.relay import Relay
from holdfast.core.errors import ConfigurationError, TerminalError
from holdfast.core.events.event import EventType
from holdfast.core.events.pattern import overlap
from holdfast.core.failures.classify import Rules
from holdfast.core.flow import By, KeyRule, key_rule
from holdfast.core.message import DEFAULT_PRIORITY
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.names import MAX_NAME, check_name
from holdfast.engine.handlers.context import Context
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.runtime.brokers.source import BrokerSource

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def ingest_name(source: Source, name: str | None) -> str:
    """The name of an ingest: the given one, or one made from its source, such as `ingest-kafka-orders-shop`."""
    if name is not None:
        return check_name("consumer", name)
    given = str(getattr(source, "name", source))
    return check_name("consumer", _NOT_IN_NAMES.sub("-", f"ingest-{given}")[:MAX_NAME])


def event_rule(name: str, event: EventType | None, key: By | None, *, trust_identity: bool) -> EventRule:
    """Checks the options of `hf.ingest` about its events."""
    return EventRule(key=_key(name, key), event=event, trusts_headers=trust_identity)


def ingest_handler(
    name: str,
    event: EventType | None,
    queue: str,
    reprocess_raw: Callable[[Context], Awaitable[None]],
    *,
    trust_identity: bool,
) -> Handler:
    """The ingest as a consumer: it decodes the unreadable records that an operator replays."""

    async def refuse(ctx: Context, _: object) -> NoReturn:
        raise TerminalError(
            f"{ctx.consumer} only stores events; this delivery was created for an earlier consumer of this name: run it with "
            "the code of that consumer, or discard it"
        )

    return Handler(
        name=name,
        kind=Kind.INGEST,
        function=refuse,
        event=event,
        queue=check_name("queue", queue),
        priority=DEFAULT_PRIORITY,
        retry=RetryPolicy.none(),
        rules=Rules(),
        takes_context=True,
        trusts_headers=trust_identity,
        reprocess_raw=reprocess_raw,
    )


def check_loops(sources: dict[str, BrokerSource], relays: Iterable[Relay]) -> None:
    """Rejects a relay that sends to the stream of an ingest: each of its events would come back as another event."""
    for relay in relays:
        for name, source in sources.items():
            if (
                source.events is not None
                and _place(source.source) == _place(relay.target)
                and any(overlap(a, b) for a in source.patterns for b in relay.wanted.patterns)
            ):
                raise ConfigurationError(
                    f"relay {relay.name} sends to {relay.target.name}, which ingest {name} reads: each event would come back "
                    "as another event; use another stream or another event for one of them"
                )


def _key(name: str, key: By | None) -> KeyRule | None:
    if key is None:
        return None
    try:
        return key_rule("key", key.removeprefix("$.") if isinstance(key, str) else key)
    except ConfigurationError as error:
        raise ConfigurationError(f"ingest {name}: {error}") from None


def _place(endpoint: object) -> tuple[object, ...]:
    """The stream and the address of an endpoint, without its group."""
    name = str(getattr(endpoint, "name", endpoint)).partition("/")[0]
    return name, getattr(endpoint, "url", None), getattr(endpoint, "servers", None)
