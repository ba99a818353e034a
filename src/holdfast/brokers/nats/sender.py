"""Sends to a JetStream stream; the server confirms each message after it is stored."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import orjson

from holdfast.brokers.nats.connection import NatsConnection, broker_errors, connect, status
from holdfast.brokers.nats.record import SUBJECT
from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.brokers.nats.stream import NatsStream

# JetStream's error code for a message that is larger than the stream allows.
_TOO_LARGE = 10054


@asynccontextmanager
async def open_sender(stream: "NatsStream") -> AsyncIterator["NatsSender"]:
    subject = stream.subject or stream.stream or ""
    if "*" in subject or ">" in subject:
        raise ConfigurationError(
            f"{stream.name} matches many subjects; give one subject to send to, or one with {{type}} in it"
        )
    async with connect(stream, "sender") as connection:
        yield NatsSender(stream, connection, subject)


class NatsSender:
    """Sends to one subject, or to one for each type."""

    def __init__(self, stream: "NatsStream", connection: NatsConnection, subject: str) -> None:
        self._name, self._connection = stream.name, connection
        self._subject, self._stream = subject, stream.stream

    async def send(self, batch: Sequence[OutgoingRecord]) -> list[str | None]:
        """In a cluster, messages with the same key are confirmed one by one: a new leader could miss an earlier one.

        A single server keeps the order of the connection, so all messages are in flight at once.
        """
        rejected: dict[int, str | None] = {}
        for wave in self._waves(batch):
            rejected.update(await self._send(batch, wave))
        return [rejected[at] for at in range(len(batch))]

    def _waves(self, batch: Sequence[OutgoingRecord]) -> list[list[int]]:
        if not self._connection.clustered:
            return [list(range(len(batch)))]
        waves: list[list[int]] = []
        seen: dict[str, int] = {}
        for at, message in enumerate(batch):
            turn = 0
            if message.key is not None:
                turn = seen.get(message.key, 0)
                seen[message.key] = turn + 1
            waves.extend([] for _ in range(turn + 1 - len(waves)))
            waves[turn].append(at)
        return waves

    async def _send(self, batch: Sequence[OutgoingRecord], wave: Sequence[int]) -> dict[int, str | None]:
        rejected: dict[int, str | None] = {}
        requests = {}
        with broker_errors(self._name):
            for at in wave:
                subject, headers = self._address(batch[at])
                if (problem := self._problem(subject, headers, batch[at].body)) is not None:
                    rejected[at] = problem
                else:
                    requests[at] = await self._connection.request(subject, batch[at].body, headers)
            responses = await self._connection.responses(list(requests.values()))
        for at, response in zip(requests, responses, strict=True):
            if status(response) is not None:
                raise BrokerUnavailable(self._name, f"no stream contains subject {self._address(batch[at])[0]}")
            error = orjson.loads(response.data).get("error")
            if error is not None and error.get("err_code") != _TOO_LARGE:
                raise BrokerUnavailable(self._name, str(error.get("description")))
            rejected[at] = None if error is None else str(error.get("description"))
        return rejected

    def _address(self, message: OutgoingRecord) -> tuple[str, dict[str, str]]:
        subject = self._subject.replace("{type}", message.type)
        # With the subject: the server drops a duplicate id, also for another subject of the same stream.
        headers = {**_safe(message.headers), "Nats-Msg-Id": f"{message.id}@{subject}"}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        return subject, headers

    def _problem(self, subject: str, headers: dict[str, str], body: bytes) -> str | None:
        """Why the server would close the connection because of this message; None if it would not."""
        for name, value in headers.items():
            if not name.isascii() or not name.isprintable() or ":" in name or " " in name or not name:
                return f"header name {name[:80]!r} cannot be sent"
            if "\r" in value or "\n" in value:
                return f"header {name} has more than one line"
        size = len(body) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 14
        if size > self._connection.client.max_payload:
            return (
                f"{size:,} bytes with its headers, over the server's limit of {self._connection.client.max_payload:,}"
            )
        return None


def _safe(headers: Mapping[str, str]) -> dict[str, str]:
    """Removes headers that control the server. A dead letter contains headers of an untrusted sender."""
    return {name: value for name, value in headers.items() if name == SUBJECT or not name.lower().startswith("nats-")}
