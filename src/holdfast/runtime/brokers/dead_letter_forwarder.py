"""Copies dead letters to a broker after they are durable in the store, which stays authoritative."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

from holdfast._log import get_logger
from holdfast.brokers import cloudevents
from holdfast.brokers.decoder import record_of
from holdfast.brokers.protocol import OutgoingRecord, Target
from holdfast.core.events import payload
from holdfast.core.message import RAW_TYPE, SOURCE_MESSAGE_ID, Message
from holdfast.engine.telemetry.alert import Alerts, DeadLetterAlert
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages

log = get_logger("holdfast.brokers")

_TRIES = 5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_MOST_WAITING = 1_000
_END_SECONDS = 5.0
_ERROR_LIMIT = 1_000


class DeadLetterForwarder:
    """Sends a copy of each dead letter of these consumers to their targets. A copy that cannot be sent is logged and dropped."""

    def __init__(self, store: Store, alerts: Alerts, targets: Mapping[str, Target]) -> None:
        self._store, self._alerts, self._targets = store, alerts, targets
        self._waiting: asyncio.Queue[DeadLetterAlert] = asyncio.Queue(_MOST_WAITING)
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._targets:
            self._alerts.watchers.add(self._enqueue)
            self._sending = asyncio.create_task(self._send_all(), name="holdfast-dead-letter-copies")

    async def end(self) -> None:
        """Sends the queued copies, for at most five seconds."""
        self._alerts.watchers.discard(self._enqueue)
        if self._sending is not None:
            try:
                await asyncio.wait_for(self._waiting.join(), _END_SECONDS)
            except TimeoutError:
                log.error("dead letter copies unsent", left=self._waiting.qsize())
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _enqueue(self, alert: DeadLetterAlert) -> None:
        if alert.target not in self._targets:
            return
        try:
            self._waiting.put_nowait(alert)
        except asyncio.QueueFull:
            log.error("dead letter copy dropped", reason="queue full", dlq_id=str(alert.delivery_id))

    async def _send_all(self) -> None:
        while True:
            alert = await self._waiting.get()
            try:
                await self._send(alert)
            finally:
                self._waiting.task_done()

    async def _send(self, alert: DeadLetterAlert) -> None:
        target, pause = self._targets[alert.target], _SHORTEST_PAUSE
        known = {"dlq_id": str(alert.delivery_id), "consumer": alert.target, "target": target.name}
        for tries in range(1, _TRIES + 1):
            try:
                found = await self._store.run(messages(id=alert.event_id, limit=1))
                async with target.open() as sender:
                    (refused,) = await sender.send([_copy(found[0], alert)])
            except Exception as error:  # noqa: BLE001
                log.warning("dead letter copy retried", tries=tries, **known | error_fields(error))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                if refused is not None:
                    log.error("dead letter copy refused", error=refused, **known)
                return
        log.error("dead letter copy abandoned", **known)


def _source_message_id(message: Message) -> str:
    """The id that the broker gave to the record."""
    if message.type == RAW_TYPE:
        return record_of(payload.decode(message.payload)).id or ""
    return message.headers.get(SOURCE_MESSAGE_ID) or message.key or ""


def _copy(message: Message, alert: DeadLetterAlert) -> OutgoingRecord:
    """The message as a CloudEvent, or a raw record unchanged, with the error in its headers."""
    if message.type == RAW_TYPE:
        record = record_of(payload.decode(message.payload))
        sent = OutgoingRecord(
            id=str(message.id), type=message.type, key=record.key, body=record.body, headers=dict(record.headers)
        )
    else:
        sent = cloudevents.encode(message)
    error_headers = {
        "dead-letter-id": str(alert.delivery_id),
        "dead-letter-consumer": alert.target,
        "dead-letter-source": alert.source,
        "dead-letter-key": message.key or "",
        "dead-letter-source-message-id": _source_message_id(message),
        "dead-letter-attempts": str(alert.attempts),
        "dead-letter-error-type": alert.error_type,
        # In one line: not every broker's headers take more.
        "dead-letter-error": " ".join(alert.last_error.split())[:_ERROR_LIMIT],
    }
    return replace(sent, headers={**sent.headers, **error_headers})
