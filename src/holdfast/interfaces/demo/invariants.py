"""Checks the demo's invariants against the database and against what the outside services received.

It reads the tables directly and shares no code with what it checks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.interfaces.demo.database import Database
from holdfast.interfaces.demo.shop import CONSUMERS

PARKED = "holdfast.CircuitOpen"
DISCARDED = "discarded"
_IN_OUR_DATABASE = ("billing", "stock")
_SHOWN = 5

Received = Mapping[int, Sequence[str]]
"""For each order, the message ids that an outside service received for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Counts of one run. `problems` lists every broken promise."""

    published: int
    delivered: int
    retried: int
    dead: int
    replayed: int
    crashes: int
    lost: int
    applied_twice: int
    received_twice: int
    problems: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The last two lines of the demo."""
        return (
            f"published {self.published}  delivered {self.delivered}  retried {self.retried}  "
            f"dead {self.dead} -> replayed {self.replayed}  crashes {self.crashes}\n"
            f"lost {self.lost}  applied twice {self.applied_twice}"
        )


def check_invariants(database: Database, mails: Received, webhooks: Received, crashes: int) -> DemoResult:
    """Counts everything and checks the promises. Call it when all work is done."""
    orders = {order for (order,) in database.rows("select id from {shop}orders")}
    ids = {int(key.split(":")[1]): str(id) for id, key in database.rows("select id, key from {hf}message")}
    statuses = _statuses(database, ids)
    effects = {
        "receipts": Counter({order: len(received) for order, received in mails.items()}),
        "billing": Counter(order for (order,) in database.rows("select order_id from {shop}charges")),
        "stock": Counter(order for (order,) in database.rows("select order_id from {shop}stock_moves")),
        "webhooks": Counter({order: len(received) for order, received in webhooks.items()}),
    }

    without_event = orders - ids.keys()
    missing = {(consumer, order) for order in ids for consumer in CONSUMERS} - statuses.keys()
    done = {about for about, status in statuses.items() if status == "delivered"}
    without_effect = {(consumer, order) for consumer, order in done if not effects[consumer][order]}
    again = [(consumer, order) for consumer, found in effects.items() for order in _duplicates(found)]
    twice = [about for about in again if about[0] in _IN_OUR_DATABASE]
    unfinished = Counter(status for status in statuses.values() if status not in ("delivered", DISCARDED))
    dead = unfinished["failed"] + _cycles(database)
    replayed = _count(database, "select count(*) from {hf}audit where action = 'replay' and kind = 'delivery'")

    problems = [
        *_problem("orders have no event", without_event),
        *_problem("events have no order", ids.keys() - orders),
        *_problem("deliveries are missing", missing),
        *_problem("deliveries had no effect", without_effect),
        *_problem("effects were applied twice", twice),
        *_problem("effects belong to no order", {order for found in effects.values() for order in found} - orders),
        *_problem("effects have an unknown message id", [*_unknown_ids(ids, mails), *_unknown_ids(ids, webhooks)]),
        *(f"{count} deliveries are still {status}" for status, count in unfinished.items()),
    ]
    if dead != replayed:
        problems.append(f"{dead} dead letters, but {replayed} replays")
    return DemoResult(
        published=len(ids),
        delivered=sum(all((consumer, order) in done for consumer in CONSUMERS) for order in ids),
        retried=_failures(database) - dead,
        dead=dead,
        replayed=replayed,
        crashes=crashes,
        lost=len(without_event) + len(missing) + len(without_effect),
        applied_twice=len(twice),
        received_twice=len(again) - len(twice),
        problems=tuple(problems),
    )


def _statuses(database: Database, ids: Mapping[int, str]) -> dict[tuple[str, int], str]:
    """The status of each delivery, by consumer and order. Deliveries that a user discarded are neither done nor lost."""
    orders = {id: order for order, id in ids.items()}
    status = f"case when discarded_at is null then status else '{DISCARDED}' end"
    rows = database.rows(f"select consumer, message_id, {status} from {{hf}}delivery")  # noqa: S608
    return {(consumer, orders[str(id)]): status for consumer, id, status in rows if str(id) in orders}


def _failures(database: Database) -> int:
    """Number of failed runs. Runs rejected by an open circuit do not count: they spent no attempt."""
    failed = "select count(*) from {hf}run where outcome in ('failed', 'lease_expired') and error_type <> {placeholder}"
    return _count(database, failed, PARKED)


def _cycles(database: Database) -> int:
    """Number of dead letters that were replayed."""
    return _count(database, "select coalesce(sum({array_length}(failure_history)), 0) from {hf}delivery")


def _count(database: Database, text: str, *values: object) -> int:
    return int(database.rows(text, values)[0][0])


def _duplicates(found: Counter[int]) -> Iterable[int]:
    """The orders that occur more than once, each as often as it was repeated."""
    return (found - Counter(dict.fromkeys(found, 1))).elements()


def _unknown_ids(ids: Mapping[int, str], received: Received) -> list[str]:
    return [f"{id} for order {order}" for order, found in received.items() for id in found if id != ids.get(order)]


def _problem(what: str, found: Iterable[object]) -> list[str]:
    listed = sorted(" of order ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in found)
    if not listed:
        return []
    return [f"{len(listed)} {what}: {', '.join(listed[:_SHOWN])}{' …' if len(listed) > _SHOWN else ''}"]
