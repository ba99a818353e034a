"""A stream or a subject of JetStream, and the consumer that a group has there."""

import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from holdfast._log import get_logger
from holdfast.brokers.endpoint import check_texts
from holdfast.brokers.nats.doubts import consumer_doubts, stream_doubts
from holdfast.brokers.nats.line import Line, connected, reported
from holdfast.brokers.nats.sending import NatsSender
from holdfast.brokers.nats.taking import NatsSubscription
from holdfast.brokers.protocol import Lag
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import BrokerUnavailable, ConfigurationError, InvalidName

if TYPE_CHECKING:
    from nats.js.api import ConsumerInfo, StreamInfo

log = get_logger("holdfast.brokers")

# What the server holds back when this many are unacknowledged in the whole group.
_IN_FLIGHT = 10_000


def stream(
    name: str,
    *,
    subject: str | None = None,
    group: str | None = None,
    servers: str | Sequence[str] | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    options: Mapping[str, Any] | None = None,
) -> "NatsPlace":
    """A JetStream stream. What is sent goes to `subject`, or to the subject of the stream's name.

    `servers` is one address or several, from HOLDFAST_NATS (divided by commas) when left out; `options` go to the
    client, such as `user_credentials` or `tls`. After `ack_timeout` the server hands a record that nobody acknowledged to
    another. A new group starts with the first record, or with `start="now"`. `{type}` in a subject stands for the
    event's type.
    """
    check_texts("nats.stream", name)
    return _place(_checked("stream", name), subject, group, servers, ack_timeout, start, options)


def subject(
    subject: str,
    *,
    group: str | None = None,
    servers: str | Sequence[str] | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    options: Mapping[str, Any] | None = None,
) -> "NatsPlace":
    """A subject, in whichever stream holds it; otherwise as `stream`."""
    return _place(None, subject, group, servers, ack_timeout, start, options)


def _place(
    stream: str | None,
    subject: str | None,
    group: str | None,
    servers: str | Sequence[str] | None,
    ack_timeout: Duration,
    start: str,
    options: Mapping[str, Any] | None,
) -> "NatsPlace":
    place = f"nats {stream or subject}"
    check_texts(
        "nats.stream" if stream is not None else "nats.subject", stream or subject, subject=subject, group=group
    )
    if start not in ("beginning", "now"):
        raise ConfigurationError(f"{place}: start is {start!r}; use 'beginning' or 'now'")
    seconds = to_timedelta(ack_timeout, name="ack_timeout").total_seconds()
    if seconds < 0.1:
        raise ConfigurationError(f"{place}: ack_timeout is {ack_timeout!r}; give 100ms or more")
    return NatsPlace(
        stream=stream,
        subject=None if subject is None else _subject(subject),
        group=None if group is None else _checked("group", group),
        servers=_addresses(servers),
        ack_timeout=seconds,
        start=start,
        options=dict(options or {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsPlace:
    """Where records come from, with a group, and where messages go to."""

    stream: str | None
    subject: str | None
    group: str | None
    servers: tuple[str, ...] = field(repr=False)
    ack_timeout: float
    start: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    # Per stream and its birth, up to where this process saw everything acknowledged.
    _floors: dict[tuple[str, datetime | None], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        place = f"nats:{self.stream or self.subject}"
        return place if self.group is None else f"{place}/{self.group}"

    @overload
    def open(self, consumer: str) -> AbstractAsyncContextManager[NatsSubscription]: ...
    @overload
    def open(self) -> AbstractAsyncContextManager[NatsSender]: ...
    def open(self, consumer: str | None = None) -> Any:
        return self._sending() if consumer is None else self._taking(consumer)

    async def durability_warnings(self) -> list[str]:
        async with self._connected("doctor") as line:
            with reported(self.name):
                info = await self._stream_info(line)
                found = stream_doubts(info, clustered=line.clustered, reading=self.group is not None)
                if self.group is not None and (known := await self._consumer_info(line, info)) is not None:
                    found += consumer_doubts(known)
                return found

    async def lag(self) -> Lag:
        """The group's lag, without joining it; everything waits for a group that was never there."""
        async with self._connected("doctor") as line:
            with reported(self.name):
                info = await self._stream_info(line)
                known = await self._consumer_info(line, info)
        if known is None:
            return Lag(waiting=info.state.messages, unacknowledged=0)
        return Lag(waiting=known.num_pending, unacknowledged=known.num_ack_pending)

    @asynccontextmanager
    async def _taking(self, consumer: str) -> AsyncIterator[NatsSubscription]:
        if self.group is None:
            raise ConfigurationError(f"{self.name} has no group to read for; give group=")
        async with self._connected(consumer) as line:
            with reported(self.name):
                info = await self._stream_info(line)
                known = await self._consumer(line, info)
            floors, birth = self._floors, (info.config.name or "", info.created)

            def looked(floor: int) -> None:
                floors[birth] = max(floor, floors.get(birth, 0))

            subscription = NatsSubscription(self.name, line, known, looked)
            try:
                yield subscription
            finally:
                with suppress(BrokerUnavailable):
                    await subscription.leave()

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[NatsSender]:
        subject = self.subject or self.stream or ""
        if "*" in subject or ">" in subject:
            raise ConfigurationError(
                f"{self.name} names many subjects; messages go to one, or to one for each {{type}}"
            )
        async with self._connected("sender") as line:
            yield NatsSender(self.name, line, subject, self.stream)

    @asynccontextmanager
    async def _connected(self, who: str) -> AsyncIterator[Line]:
        servers = self.servers or _addresses(os.environ.get("HOLDFAST_NATS", ""))
        if not servers:
            raise ConfigurationError(f"{self.name} has no address; give servers= or set HOLDFAST_NATS")
        # Any order, so that not every client is at the first; each is tried once, and trying again is the caller's.
        chosen = random.sample(servers, len(servers))
        async with connected(self.name, chosen, f"holdfast {who}", self.options) as line:
            yield line

    async def _stream_info(self, line: Line) -> "StreamInfo":
        from nats.js.errors import NotFoundError

        try:
            name = self.stream or await line.jetstream.find_stream_name_by_subject(self._filter or "")
            return await line.jetstream.stream_info(name)
        except NotFoundError:
            what = f"stream {self.stream}" if self.stream else f"stream that holds {self.subject}"
            raise BrokerUnavailable(self.name, f"there is no {what}; create it with `nats stream add`") from None

    async def _consumer_info(self, line: Line, info: "StreamInfo") -> "ConsumerInfo | None":
        from nats.js.errors import NotFoundError

        try:
            known: ConsumerInfo = await line.jetstream.consumer_info(info.config.name or "", self.group or "")
            return known
        except NotFoundError:
            return None

    async def _consumer(self, line: Line, info: "StreamInfo") -> "ConsumerInfo":
        """The group's durable consumer, made or brought up to our settings."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        stream = info.config.name or ""
        wanted: dict[str, Any] = {
            "ack_wait": self.ack_timeout,
            "max_deliver": -1,
            "max_ack_pending": _IN_FLIGHT,
            # Without a filter where there is nothing to leave out: then gaps in the sequence mean lost records.
            "filter_subject": None if self._filter in (None, *_all_of(info)) else self._filter,
            "filter_subjects": None,
            "backoff": None,
            "inactive_threshold": None,
        }
        known = await self._consumer_info(line, info)
        if known is not None:
            if known.config.deliver_subject is not None or known.config.ack_policy != AckPolicy.EXPLICIT:
                raise ConfigurationError(
                    f"consumer {self.group} of stream {stream} is not one that pulls and acknowledges each record; "
                    "choose another group, or delete it if nobody needs it"
                )
            if any(getattr(known.config, setting) != value for setting, value in wanted.items()):
                known = await line.jetstream.add_consumer(stream, known.config.evolve(**wanted))
            return known
        begin: dict[str, Any] = {"deliver_policy": DeliverPolicy.NEW if self.start == "now" else DeliverPolicy.ALL}
        if self._floors:
            # This process has read here: what was not acknowledged comes again, and of a new stream everything.
            first = self._floors.get((stream, info.created), 0) + 1
            begin = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": first}
            log.warning("consumer group recreated", source=self.name, first=first)
        return await line.jetstream.add_consumer(
            stream, ConsumerConfig(durable_name=self.group, ack_policy=AckPolicy.EXPLICIT, **begin, **wanted)
        )

    @property
    def _filter(self) -> str | None:
        return None if self.subject is None else self.subject.replace("{type}", ">")


def _all_of(info: "StreamInfo") -> tuple[str, ...]:
    """The filter that leaves nothing out, where there is one."""
    subjects = info.config.subjects or []
    return (subjects[0],) if len(subjects) == 1 else ()


def _addresses(servers: str | Sequence[str] | None) -> tuple[str, ...]:
    given = servers.split(",") if isinstance(servers, str) else servers or ()
    return tuple(stripped for server in given if (stripped := server.strip()))


def _checked(kind: str, value: str) -> str:
    """A name that NATS takes for a stream or a consumer."""
    wrong = next((char for char in value if char in ">*./\\" or char.isspace() or not char.isprintable()), None)
    if value and wrong is None:
        return value
    problem = "it is empty" if not value else f"character {wrong!r} is not allowed"
    raise InvalidName(kind, value, problem, "printable characters without spaces and without . * > / \\")


def _subject(value: str) -> str:
    """A subject that NATS takes: parts joined by dots, none of them empty."""
    if all(part and part.isprintable() and not any(char.isspace() for char in part) for part in value.split(".")):
        return value
    raise InvalidName("subject", value, "a part is empty or has a space", "parts joined by single dots, such as a.b")
