"""Messages into a JetStream stream, each confirmed by the server once it is stored."""

from collections.abc import Mapping, Sequence

import orjson

from holdfast.brokers.nats.line import SUBJECT, Line, reported, status
from holdfast.brokers.protocol import OutgoingRecord
from holdfast.core.errors import BrokerUnavailable

# JetStream's own numbers for: larger than the stream allows.
_TOO_LARGE = 10054


class NatsSender:
    """Sends to one subject, or to one for each type."""

    def __init__(self, name: str, line: Line, subject: str, stream: str | None) -> None:
        self._name, self._line = name, line
        self._subject, self._stream = subject, stream

    async def send(self, batch: Sequence[OutgoingRecord]) -> list[str | None]:
        """Those of one key follow each other, confirmed one by one, where a leader may change in between.

        On a single server, whose connection carries a message only behind those before it, all are in flight.
        """
        verdicts: dict[int, str | None] = {}
        for wave in self._waves(batch):
            verdicts.update(await self._send(batch, wave))
        return [verdicts[at] for at in range(len(batch))]

    def _waves(self, batch: Sequence[OutgoingRecord]) -> list[list[int]]:
        if not self._line.clustered:
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
        verdicts: dict[int, str | None] = {}
        asked = {}
        with reported(self._name):
            for at in wave:
                subject, headers = self._addressed(batch[at])
                if (wrong := self._wrong(subject, headers, batch[at].body)) is not None:
                    verdicts[at] = wrong
                else:
                    asked[at] = await self._line.ask(subject, batch[at].body, headers)
            answers = await self._line.answers(list(asked.values()))
        for at, answer in zip(asked, answers, strict=True):
            if status(answer) is not None:
                raise BrokerUnavailable(self._name, f"no stream holds subject {self._addressed(batch[at])[0]}")
            refused = orjson.loads(answer.data).get("error")
            if refused is not None and refused.get("err_code") != _TOO_LARGE:
                raise BrokerUnavailable(self._name, str(refused.get("description")))
            verdicts[at] = None if refused is None else str(refused.get("description"))
        return verdicts

    def _addressed(self, message: OutgoingRecord) -> tuple[str, dict[str, str]]:
        subject = self._subject.replace("{type}", message.type)
        # The subject too, or the second of two subjects in one stream would pass for a repetition of the first.
        headers = {**_free(message.headers), "Nats-Msg-Id": f"{message.id}@{subject}"}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        return subject, headers

    def _wrong(self, subject: str, headers: dict[str, str], body: bytes) -> str | None:
        """Why the server would end the connection over this message, if it would."""
        for name, value in headers.items():
            if not name.isascii() or not name.isprintable() or ":" in name or " " in name or not name:
                return f"header name {name[:80]!r} cannot be sent"
            if "\r" in value or "\n" in value:
                return f"header {name} has more than one line"
        size = len(body) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 14
        if size > self._line.client.max_payload:
            return f"{size:,} bytes with its headers, over the server's limit of {self._line.client.max_payload:,}"
        return None


def _free(headers: Mapping[str, str]) -> dict[str, str]:
    """Without those that tell the server what to do: a raw record's may be its own sender's, even to drop the stream."""
    return {name: value for name, value in headers.items() if name == SUBJECT or not name.lower().startswith("nats-")}
