"""Delivery counts and workers at one moment, for the screen and the scenario."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from holdfast.interfaces.demo.database import Database
from holdfast.interfaces.demo.invariants import PARKED
from holdfast.interfaces.demo.worker_processes import pid_of
from holdfast.stores.deliveries.worker import WorkerRecord


class State(StrEnum):
    """A delivery state as shown in the demo: pending deliveries are split by the reason they wait."""

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    RETRYING = "retrying"
    PARKED = "parked"
    DEAD = "dead"
    DELIVERED = "delivered"


_STATES = f"""
select consumer, queue, case
    when status = 'in_flight' then '{State.IN_FLIGHT}'
    when status = 'delivered' then '{State.DELIVERED}'
    when status = 'failed' then '{State.DEAD}'
    when error_type = '{PARKED}' then '{State.PARKED}'
    when error_type is not null then '{State.RETRYING}'
    else '{State.WAITING}' end as state, count(*)
from {{hf}}delivery group by 1, 2, 3"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Deliveries by consumer and state, and the number of claims per worker."""

    counts: Counter[tuple[str, State]]
    queues: dict[str, str]
    workers: dict[int, int]

    @classmethod
    def empty(cls) -> Self:
        """The state before the start."""
        return cls(Counter(), {}, {})

    def count(self, *states: State, consumer: str | None = None) -> int:
        """Number of deliveries in these states, of one consumer or all."""
        return sum(n for (name, state), n in self.counts.items() if state in states and consumer in (None, name))

    @property
    def unfinished(self) -> int:
        """Number of deliveries that are neither delivered nor dead."""
        return self.count(State.WAITING, State.IN_FLIGHT, State.RETRYING, State.PARKED)


def take_snapshot(database: Database, workers: Sequence[WorkerRecord]) -> Snapshot:
    """Reads the current state from the store."""
    rows = database.rows(_STATES)
    return Snapshot(
        Counter({(consumer, State(state)): n for consumer, _, state, n in rows}),
        {consumer: queue for consumer, queue, *_ in rows},
        {pid_of(worker): worker.in_flight for worker in workers},
    )
