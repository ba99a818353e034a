"""Gives keys to pending deliveries that have none: they were published before the key was declared, or where it is unknown.

When a worker first sees a lane, it sweeps all its pending deliveries, due or not. An ordered consumer is claimed from only
after that, because later ones could overtake a delivery without a position. Lanes with fairness are swept again from
time to time: a walk over keys does not find a delivery without one.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.core.encryption import encrypted_value
from holdfast.core.flow import FlowSettings, KeyRule
from holdfast.core.query_interval import next_query
from holdfast.engine.claims.scheduler import COST_FACTOR, LONGEST_HIDDEN
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.deliveries.claim import Lane
from holdfast.stores.deliveries.flow import Unkeyed, adopt_deliveries, unkeyed_deliveries
from holdfast.stores.messages.flow import DeliveryKey
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")

_BATCH = 1000
_SWEEP_EVERY = 1.0

LaneName = tuple[str, str, int, int]


@dataclass(slots=True)
class _Sweep:
    """How far a lane was swept, and for which key. A change of the limit needs no other sweep."""

    rule: KeyRule | None
    is_sequenced: bool
    after: tuple[datetime, UUID] | None = None
    cost: float = 0.0
    due: float | None = None
    """When to sweep again; None until the first sweep has reached the end."""


class FlowAdoption:
    """Gives keys to the deliveries that have none, in the lanes of one worker session. It sweeps each lane."""

    def __init__(self, store: Store, handlers: Mapping[str, Handler], *, suspects: bool) -> None:
        self._store, self._handlers, self._suspects = store, handlers, suspects
        self._sweeps: dict[LaneName, _Sweep] = {}

    async def sweep(self, lanes: Sequence[Lane], empty: Collection[LaneName] = ()) -> bool:
        """Adopts one batch of each lane that is not swept yet; returns whether one of them needs another batch.

        `empty` lanes have nothing due and are not swept again.
        """
        more = False
        for lane in lanes:
            settings = _keyed(lane)
            if settings is None:
                continue
            sweep = self._sweeps.get(lane[:4])
            if sweep is None or (sweep.rule, sweep.is_sequenced) != (settings.key, settings.is_sequenced):
                sweep = self._sweeps[lane[:4]] = _Sweep(settings.key, settings.is_sequenced)
            if sweep.due is None or (settings.fair and lane[:4] not in empty and time.monotonic() >= sweep.due):
                await self._continue(lane, sweep)
                more = more or sweep.due is None
        return more

    def unordered(self, lanes: Iterable[Lane]) -> set[str]:
        """Ordered consumers with a lane that is not swept: some of their deliveries may have no position in the order."""
        return {
            lane.consumer
            for lane in lanes
            if (settings := _keyed(lane)) is not None
            and settings.order is not None
            and ((sweep := self._sweeps.get(lane[:4])) is None or sweep.due is None)
        }

    async def adopt(self, lane: Lane) -> bool:
        """Adopts the oldest deliveries of a lane; False if none was found or this worker cannot find the key."""
        after = None
        while True:
            found, after = await self._adopt(lane, after)
            if found or after is None:
                return found

    async def _continue(self, lane: Lane, sweep: _Sweep) -> None:
        started = time.monotonic()
        _, sweep.after = await self._adopt(lane, sweep.after)
        ended = time.monotonic()
        sweep.cost += ended - started
        if sweep.after is not None:
            sweep.due = None
        else:
            sweep.due = next_query(
                ended - sweep.cost, ended, factor=COST_FACTOR, longest=LONGEST_HIDDEN, shortest=_SWEEP_EVERY
            )
            sweep.cost = 0.0

    async def _adopt(
        self, lane: Lane, after: tuple[datetime, UUID] | None
    ) -> tuple[bool, tuple[datetime, UUID] | None]:
        """Adopts a page; returns whether it had deliveries without a key, and where the next one begins."""
        settings = _keyed(lane)
        rule = None if settings is None else _rule(settings, self._handlers.get(lane.consumer))
        if settings is None or rule is None:
            return False, None
        ordered = settings.is_sequenced
        page = await self._store.run(
            unkeyed_deliveries(lane, _BATCH, ordered=ordered, after=after, suspects=self._suspects)
        )
        if page.found:
            readable = [one for one in page.found if not (rule.reads_payload and _lacks_encryption_key(one))]
            keys = [DeliveryKey(one.id, _key(lane.consumer, rule, one), ordered) for one in readable]
            await self._store.run(adopt_deliveries(keys))
            return bool(keys), page.after
        return False, page.after


def _keyed(lane: Lane) -> FlowSettings | None:
    settings = None if lane.flow is None else lane.flow.consumer
    return None if settings is None or settings.key is None else settings


def _key(consumer: str, rule: KeyRule, unkeyed: Unkeyed) -> str:
    try:
        return rule.key(unkeyed.payload, orjson.loads(unkeyed.headers))
    except Exception as error:  # noqa: BLE001
        # The message is published; without a key it would never run.
        log.error("flow key evaluation failed", consumer=consumer, delivery_id=str(unkeyed.id), **error_fields(error))
        return ""


def _lacks_encryption_key(unkeyed: Unkeyed) -> bool:
    """Whether only a worker with another encryption key can find the flow key."""
    found = encrypted_value(unkeyed.payload)
    return found is not None and found.refused is None


def _rule(settings: FlowSettings, handler: Handler | None) -> KeyRule | None:
    """The rule that this worker can evaluate: the app's own, or the stored one."""
    for rule in (None if handler is None or handler.flow is None else handler.flow.key, settings.key):
        if rule is not None and rule.is_known:
            return rule
    return None
