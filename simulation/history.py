"""The history of a run: what was requested and acknowledged, what handlers did, and every change of the database.

Values only. Nothing here or in `checks` imports Holdfast, so that a bug there cannot hide itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

PENDING, RUNNING, DELIVERED, FAILED, REMOVED = "pending", "in_flight", "delivered", "failed", "removed"
ENDED = frozenset({DELIVERED, FAILED})


class Change(NamedTuple):
    """A committed change of a delivery, as a trigger saw it. `n` is its place in the order of the whole history."""

    n: int
    at: int
    process: str
    delivery: str
    message: str
    consumer: str
    flow_key: str | None
    old_status: str | None
    status: str
    old_fence: int | None
    fence: int
    old_attempts: int | None
    attempts: int
    old_owner: str | None
    owner: str | None
    old_run_at: int | None
    run_at: int
    old_lease: int | None
    discarded: int | None
    budget: int | None


class LeaseChange(NamedTuple):
    """A committed change of a worker's lease."""

    n: int
    at: int
    process: str
    worker: str
    alive_until: int
    gone: int


class Effect(NamedTuple):
    """A row that a handler wrote in the transaction that it completed."""

    n: int
    delivery: str
    consumer: str
    attempt: int


class StoredMessage(NamedTuple):
    """A message as it is stored at the end."""

    id: str
    type: str
    key: str | None
    n: int | None


class Occurrence(NamedTuple):
    """A firing of the schedule, at a time in milliseconds."""

    message: str
    at: int


class ProcessFault(NamedTuple):
    """A fault of a process, at a time in milliseconds."""

    at: int
    process: str


class Publication(NamedTuple):
    """A publish. `outcome`: accepted, unknown (an error, so either is allowed) or rolled back."""

    n: int
    kind: str
    outcome: str
    message: str | None


class Run(NamedTuple):
    """A run of a handler, with the numbers of its start and its end; `end` is None if the process died."""

    start: int
    end: int | None
    process: str
    delivery: str
    consumer: str
    fence: int | None
    """None for a run of a batch, which does not know its fences."""
    attempt: int
    outcome: str
    n: int | None


class Action(NamedTuple):
    """An acknowledged action of an operator on a delivery; `n` is its place in the history."""

    n: int
    kind: str
    delivery: str


@dataclass(slots=True)
class History:
    """Everything that the checker may read."""

    publications: list[Publication] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """Deliveries on which an operator tried to act, also without an acknowledgement."""
    changes: list[Change] = field(default_factory=list)
    leases: list[LeaseChange] = field(default_factory=list)
    faults: list[ProcessFault] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    """When each process died or ended, in milliseconds."""
    ended_at: int = 0
    """The end of the run, in milliseconds."""
    pauses: list[tuple[int, str, bool]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    messages: list[StoredMessage] = field(default_factory=list)
    relayed: list[str] = field(default_factory=list)
    """The messages that the broker stored, in its order."""
    occurrences: list[Occurrence] = field(default_factory=list)
    deliveries: dict[str, str] = field(default_factory=dict)
    """The status of each delivery at the end."""
    quiet_seconds: float = 0.0
    """How long it took after the last fault until nothing was left to do."""
    errors: list[str] = field(default_factory=list)
    """Errors inside Holdfast that no fault explains."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the application declared: budgets, limits and times."""

    features: frozenset[str]
    """The optional mechanisms that the seed uses."""
    consumers: dict[str, frozenset[str]]
    """The consumers that get a delivery of each kind of publication."""
    rates: dict[str, tuple[int, int]]
    """How many claims of a consumer are allowed in how many milliseconds."""
    parts: int
    """The jobs of a group."""
    attempts: dict[str, int]
    limits: dict[str, int]
    ordered: frozenset[str]
    tick_ms: int
    lease_ms: int
    terminal: Callable[[str, int | None], bool]
    """Whether a handler reports a failure that no retry fixes, by consumer and number."""
