"""The reckoning: what became of every order, counted from the database and from what the world received.

It reads the tables itself, apart from the code that it judges.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.interfaces.demo.database import Database
from holdfast.interfaces.demo.shop import CONSUMERS

PARKED = "holdfast.core.errors.CircuitOpen"
SET_ASIDE = "set aside"
_IN_OUR_DATABASE = ("billing", "stock")
_SHOWN = 5

Received = Mapping[int, Sequence[str]]
"""For each order, the message ids under which something was received for it, outside the shop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers of one run. `problems` names every promise that was broken; it is empty if all were kept."""

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


def take_tally(database: Database, mails: Received, webhooks: Received, crashes: int) -> Tally:
    """Counts everything and holds it against the promises. Call it when all work is done."""
    orders = {order for (order,) in database.rows("select id from {shop}orders")}
    ids = {int(key.split(":")[1]): str(id) for id, key in database.rows("select id, key from {hf}message")}
    statuses = _statuses(database, ids)
    effects = {
        "receipts": Counter({order: len(received) for order, received in mails.items()}),
        "billing": Counter(order for (order,) in database.rows("select order_id from {shop}charges")),
        "stock": Counter(order for (order,) in database.rows("select order_id from {shop}stock_moves")),
        "webhooks": Counter({order: len(received) for order, received in webhooks.items()}),
    }

    silent = orders - ids.keys()
    gone = {(consumer, order) for order in ids for consumer in CONSUMERS} - statuses.keys()
    done = {about for about, status in statuses.items() if status == "delivered"}
    hollow = {(consumer, order) for consumer, order in done if not effects[consumer][order]}
    again = [(consumer, order) for consumer, found in effects.items() for order in _surplus(found)]
    twice = [about for about in again if about[0] in _IN_OUR_DATABASE]
    unfinished = Counter(status for status in statuses.values() if status not in ("delivered", SET_ASIDE))
    dead = unfinished["failed"] + _cycles(database)
    replayed = _count(database, "select count(*) from {hf}audit where action = 'replay' and kind = 'delivery'")

    problems = [
        *_named("orders have no event", silent),
        *_named("events have no order", ids.keys() - orders),
        *_named("deliveries are gone", gone),
        *_named("deliveries have had no effect", hollow),
        *_named("effects were applied twice", twice),
        *_named("effects belong to no order", {order for found in effects.values() for order in found} - orders),
        *_named("things came under a strange id", [*_strange(ids, mails), *_strange(ids, webhooks)]),
        *(f"{count} deliveries are still {status}" for status, count in unfinished.items()),
    ]
    if dead != replayed:
        problems.append(f"{dead} dead letters, but {replayed} replays")
    return Tally(
        published=len(ids),
        delivered=sum(all((consumer, order) in done for consumer in CONSUMERS) for order in ids),
        retried=_failures(database) - dead,
        dead=dead,
        replayed=replayed,
        crashes=crashes,
        lost=len(silent) + len(gone) + len(hollow),
        applied_twice=len(twice),
        received_twice=len(again) - len(twice),
        problems=tuple(problems),
    )


def _statuses(database: Database, ids: Mapping[int, str]) -> dict[tuple[str, int], str]:
    """The status of each delivery, by consumer and order. What a visitor has set aside is neither done nor lost."""
    orders = {id: order for order, id in ids.items()}
    status = f"case when discarded_at is null then status else '{SET_ASIDE}' end"
    rows = database.rows(f"select consumer, message_id, {status} from {{hf}}delivery")  # noqa: S608
    return {(consumer, orders[str(id)]): status for consumer, id, status in rows if str(id) in orders}


def _failures(database: Database) -> int:
    """How many runs failed. One that found the circuit open was none: it spent no attempt."""
    failed = "select count(*) from {hf}run where outcome in ('failed', 'lease_expired') and error_type <> {mark}"
    return _count(database, failed, PARKED)


def _cycles(database: Database) -> int:
    """How often a delivery had become a dead letter before it was replayed."""
    return _count(database, "select coalesce(sum({array_length}(failure_history)), 0) from {hf}delivery")


def _count(database: Database, text: str, *values: object) -> int:
    return int(database.rows(text, values)[0][0])


def _surplus(found: Counter[int]) -> Iterable[int]:
    """Each order as often as it is there beyond the first time."""
    return (found - Counter(dict.fromkeys(found, 1))).elements()


def _strange(ids: Mapping[int, str], received: Received) -> list[str]:
    return [f"{id} for order {order}" for order, found in received.items() for id in found if id != ids.get(order)]


def _named(what: str, found: Iterable[object]) -> list[str]:
    listed = sorted(" of order ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in found)
    if not listed:
        return []
    return [f"{len(listed)} {what}: {', '.join(listed[:_SHOWN])}{' …' if len(listed) > _SHOWN else ''}"]
