"""A stream or a subject of JetStream as a source and a target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.brokers.endpoint import BrokerEndpoint, ack_timeout_seconds, check_start, check_texts
from holdfast.core.errors import InvalidName
from holdfast.core.values.duration import Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsStream(BrokerEndpoint):
    """A stream or a subject. Created by `stream()` or `subject()`; it connects only when it is opened."""

    adapter = "nats"
    client = "nats"
    stream: str | None
    subject: str | None
    group: str | None
    servers: tuple[str, ...] = field(repr=False)
    ack_timeout: float
    start: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    # By stream and its creation time: the sequence up to which this process saw every record acknowledged.
    floors: dict[tuple[str, datetime | None], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        name = f"nats:{self.stream or self.subject}"
        return name if self.group is None else f"{name}/{self.group}"

    @property
    def filter_subject(self) -> str | None:
        return None if self.subject is None else self.subject.replace("{type}", ">")


def stream(
    name: str,
    *,
    subject: str | None = None,
    group: str | None = None,
    servers: str | Sequence[str] | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    options: Mapping[str, Any] | None = None,
) -> NatsStream:
    """A JetStream stream: a source for the consumers of `group`, or a target.

    Messages are sent to `subject`, or to the subject with the name of the stream; `{type}` in a subject is replaced by
    the type of the event. `servers` is one address or several; the default is `HOLDFAST_NATS`, separated by commas.
    `options` are passed to the client, such as `user_credentials` or `tls`. After `ack_timeout` the server redelivers a
    record that is not acknowledged. A new group starts at the first record, or with `start="now"` at the end.
    """
    check_texts("nats.stream", name, subject=subject, group=group)
    return _create(_check_name("stream", name), subject, group, servers, ack_timeout, start, options)


def subject(
    subject: str,
    *,
    group: str | None = None,
    servers: str | Sequence[str] | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    options: Mapping[str, Any] | None = None,
) -> NatsStream:
    """A subject, in the stream that contains it; otherwise like `stream`."""
    check_texts("nats.subject", subject, group=group)
    return _create(None, subject, group, servers, ack_timeout, start, options)


def addresses(servers: str | Sequence[str] | None) -> tuple[str, ...]:
    given = servers.split(",") if isinstance(servers, str) else servers or ()
    return tuple(stripped for server in given if (stripped := server.strip()))


def _create(
    stream: str | None,
    subject: str | None,
    group: str | None,
    servers: str | Sequence[str] | None,
    ack_timeout: Duration,
    start: str,
    options: Mapping[str, Any] | None,
) -> NatsStream:
    what = f"nats {stream or subject}"
    check_start(what, start)
    return NatsStream(
        stream=stream,
        subject=None if subject is None else _check_subject(subject),
        group=None if group is None else _check_name("group", group),
        servers=addresses(servers),
        ack_timeout=ack_timeout_seconds(what, ack_timeout),
        start=start,
        options=dict(options or {}),
    )


def _check_name(kind: str, value: str) -> str:
    """A name that NATS accepts for a stream or a consumer."""
    wrong = next((char for char in value if char in ">*./\\" or char.isspace() or not char.isprintable()), None)
    if value and wrong is None:
        return value
    problem = "it is empty" if not value else f"character {wrong!r} is not allowed"
    raise InvalidName(kind, value, problem, "printable characters without spaces and without . * > / \\")


def _check_subject(value: str) -> str:
    """A subject that NATS accepts: parts joined by dots, none of them empty."""
    if all(part and part.isprintable() and not any(char.isspace() for char in part) for part in value.split(".")):
        return value
    raise InvalidName("subject", value, "a part is empty or has a space", "parts joined by single dots, such as a.b")
