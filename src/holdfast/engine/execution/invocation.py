"""One run of a handler as a value: what it processes, and how it ended."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from holdfast.core.identity import delivery_id
from holdfast.core.message import Message, NewMessage
from holdfast.core.outcome import Outcome
from holdfast.engine.execution.threads import ThreadResult
from holdfast.stores.deliveries.claim import Claimed

Thread = asyncio.Future[ThreadResult]


@dataclass(frozen=True, slots=True)
class MessageInvocation:
    """A message that runs without a stored delivery: a direct broker record, a rebuild, a reaction."""

    id: UUID
    message_id: UUID
    consumer: str
    queue: str
    type: str
    source: str
    key: str | None
    payload: str
    correlation: Mapping[str, str]
    generation: int
    occurred_at: datetime
    attempts: int = 1
    fence: int = 0
    max_attempts: int | None = None
    holds: int = 0
    expiries: int = 0

    @classmethod
    def of(
        cls, message: NewMessage | Message, consumer: str, queue: str, *, attempts: int = 1, fence: int = 0
    ) -> "MessageInvocation":
        """A run of this message. Without `occurred_at` it gets this machine's time, on which no decision depends."""
        return cls(
            delivery_id(message.id, consumer),
            message.id,
            consumer,
            queue,
            message.type,
            message.source,
            message.key,
            message.payload,
            message.headers,
            message.generation,
            message.occurred_at or datetime.now(UTC),
            attempts,
            fence,
        )


Invocation = Claimed | MessageInvocation
"""What a handler runs for."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: its outcome, the exception or signal, and the thread that still runs."""

    outcome: Outcome
    error: BaseException | None = None
    thread: Thread | None = None
