"""What must hold after a fault has ended: nothing accepted is lost, no committed effect is applied twice, nothing is stuck."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg
import redis

from chaos.application import BROKERS, STEPS
from chaos.journal import ACCEPTED, ATTEMPTED, SINK, window_of
from chaos.laboratory import Laboratory

AT_LEAST_ONCE = ("work", "webhooks", "relay", "limits")
"""Loads whose effect is outside of the database: each item at least once, repeated under the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The result of one load under one fault.

    `applied` counts distinct effects, `repeated` runs beyond the first of effects outside the database, `twice` effects that
    must commit once and did so more often, `unexpected` effects of items that were rolled back or never submitted.
    `stuck_seconds` is the time from the end of the fault until everything accepted was applied.
    """

    accepted: int
    applied: int
    lost: int
    repeated: int
    twice: int
    unexpected: int
    stuck_seconds: float
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not (self.lost or self.twice or self.unexpected or self.problems)


class Oracle:
    """Compares the journal with the tables, for one window."""

    def __init__(self, lab: Laboratory, window: str) -> None:
        self._lab, self._window = lab, window

    def missing(self, load: str) -> set[str]:
        """The effects of accepted items that are not there yet; raises `StoreUnreadable` while it cannot be known."""
        return self._expected(load, ACCEPTED) - set(self._applied(load))

    def count(self, load: str, stuck_seconds: float) -> Counts:
        """The final result of a load."""
        applied = self._applied(load)
        expected = self._expected(load, ACCEPTED)
        known = expected | self._expected(load, ATTEMPTED)
        doubled = {effect: number for effect, number in applied.items() if number > 1}
        once = load not in AT_LEAST_ONCE
        return Counts(
            accepted=len(self._lab.journal.items(ACCEPTED, self._window)[load]),
            applied=len(applied),
            lost=len(expected - set(applied)),
            repeated=0 if once else sum(doubled.values()) - len(doubled),
            twice=len(doubled) if once else 0,
            unexpected=len(set(applied) - known),
            stuck_seconds=round(stuck_seconds, 1),
            problems=tuple(self._problems(load)),
        )

    def _problems(self, load: str) -> Iterable[str]:
        lab = self._lab
        if load == "publish":
            rows = {item for (item,) in lab.store.sql("select item from chaos_business") if self._is_mine(item)}
            if rows != set(self._applied("publish")):
                yield "a business row without its message, or a message without its row"
        if load == "limits" and lab.limit_exceeded:
            yield f"{lab.most_limited} deliveries of the limited consumer were in flight at the same time"
        consumers = {"workflows": "chaos%", **{name: f"{name}\\_%" for name in BROKERS}}.get(load, load)
        failed = "select count(*) from {hf}delivery where status = 'failed' and consumer like ? escape '\\'"
        if number := lab.store.one(failed, "webhook:%" if load == "webhooks" else consumers):
            yield f"{number} dead letters"

    def _expected(self, load: str, file: str) -> set[str]:
        items = self._lab.journal.items(file, self._window)[load]
        if load == "workflows":
            return {f"{item}/{step}" for item in items for step in STEPS}
        if load in BROKERS:
            return {f"{item}/{kind}" for item in items for kind in ("stored", "direct")}
        return set(items)

    def _applied(self, load: str) -> Counter[str]:
        read: Callable[[], Iterable[str]]
        if load in ("work", "limits", "webhooks"):
            read = lambda: self._lab.journal.items(SINK, self._window)[load]  # noqa: E731
        elif load == "publish":
            read = self._messages
        elif load == "relay":
            read = self._relayed
        elif load == "rebuild":
            return Counter(dict(self._mine(self._lab.store.sql("select bucket, items from chaos_counts"))))
        else:
            read = lambda: self._effects(load)  # noqa: E731
        return Counter(item for item in read() if self._is_mine(item))

    def _messages(self) -> Iterable[str]:
        rows = self._lab.store.sql("select payload from {hf}message where type = 'chaos.publish'")
        for (payload,) in rows:
            yield (json.loads(payload) if isinstance(payload, str) else payload)["item"]

    def _relayed(self) -> Iterable[str]:
        assert self._lab.relay is not None
        return self._lab.relay.items()

    def _effects(self, load: str) -> Iterable[str]:
        if load in BROKERS:
            for kind in ("stored", "direct"):
                for (item,) in self._lab.store.sql("select item from chaos_effect where load = ?", f"{load}_{kind}"):
                    yield f"{item}/{kind}"
            return
        for (item,) in self._lab.store.sql("select item from chaos_effect where load = ?", load):
            yield item

    def _mine(self, rows: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
        return (row for row in rows if self._is_mine(row[0]))

    def _is_mine(self, item: str) -> bool:
        return window_of(item) == self._window


UNREADABLE = (psycopg.Error, redis.RedisError, OSError)
"""Errors of the lab's own connections right after a fault."""
