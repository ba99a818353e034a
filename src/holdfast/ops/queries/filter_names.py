"""The names in a filter. A misspelled name matches nothing, and an empty list would look as if all were well.

A front end calls these checks when a list is empty, so a list with items costs nothing. The lists themselves do not call
them: an app may read them before its consumers have registered.
"""

import difflib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.core.events.pattern import ANY, overlap
from holdfast.ops.queries.pages import first_match
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.messages.registry import consumers
from holdfast.stores.queries import pagination
from holdfast.stores.queries.delivery_counts import counts, uncounted_groups
from holdfast.stores.queries.flow_keys import stored_queue_flows
from holdfast.stores.queries.query import Filter, paused_queues, subscriptions

_SHOWN = 20
_PAST = "its dead letters may have been replayed or discarded; `holdfast dlq groups` lists the groups there are"


def unknown_name(what: str, name: str, known: Iterable[str], verb: str = "known") -> NotFound:
    """The error for a name that does not exist, with the nearest name and the known ones."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return NotFound(what, name, f"{hint}{verb}: {', '.join(names[:_SHOWN]) or 'none yet'}{more}")


def check_filter(wanted: Filter, *, timer: Callable[[], float] = time.monotonic) -> TaskSteps[None]:
    """Raises `NotFound` for a consumer, queue, type, error class or failure group of the filter that does not exist.

    A name exists if it is registered, or if a failed, an unfinished or one of the newest deliveries has it. It takes a
    bounded time. A type that only a subscription with a prefix matches counts as existing while older messages may have it.
    """
    for name in wanted.consumers:
        yield from _check_consumer(name, timer)
    if wanted.queue is not None:
        yield from _check_queue(wanted.queue, timer)
    if wanted.group is not None and not (yield from _occurs(Filter(group=wanted.group), timer)):
        raise NotFound("failure group", wanted.group, _PAST)
    if wanted.error_type is not None and not (yield from _occurs(Filter(error_type=wanted.error_type), timer)):
        groups = yield from transact(uncounted_groups())
        raise unknown_name("error class", wanted.error_type, (one.error_type for one in groups if one.error_type))
    if wanted.type is not None:
        yield from check_type_exists(wanted.type, timer=timer)


def check_type_exists(type: str, *, timer: Callable[[], float] = time.monotonic) -> TaskSteps[None]:
    """Raises `NotFound` for a type, or a prefix such as `order.*`, that no message, subscription or job has."""
    subscribed = yield from transact(subscriptions())
    patterns = {one.pattern for one in subscribed}
    jobs = {one.name for one in (yield from transact(consumers()))} - {one.consumer for one in subscribed}
    types = (patterns - {ANY}) | {f"job.{name}" for name in jobs}
    exact = {one for one in types if not one.endswith(".*")}
    if type == ANY or any(overlap(type, one) for one in (types if type.endswith(".*") else exact)):
        return
    if (yield from _some(Filter(statuses=(Status.FAILED,), type=type), timer)):
        return
    found = yield from first_match(lambda below: pagination.message_page(type=type, limit=1, before=below), None, timer)
    if found.items or (found.next is not None and any(overlap(type, one) for one in patterns)):
        return
    raise unknown_name("type", type, types, "subscribed")


def _check_consumer(name: str, timer: Callable[[], float]) -> TaskSteps[None]:
    known = [one.name for one in (yield from transact(consumers()))]
    # A message for a consumer that never registered has a delivery, and nothing else has its name.
    if name not in known and not (yield from _occurs(Filter(consumers=(name,)), timer)):
        raise unknown_name("consumer", name, known, "registered")


def _check_queue(name: str, timer: Callable[[], float]) -> TaskSteps[None]:
    known = {one.queue for one in (yield from transact(consumers()))}
    known |= {one.queue for one in (yield from transact(counts()))}
    known |= (yield from transact(paused_queues())).keys() | (yield from transact(stored_queue_flows())).keys()
    known |= {queue for worker in (yield from transact(live_workers())) for queue in worker.queues}
    if name not in known and not (yield from _occurs(Filter(queue=name), timer)):
        raise unknown_name("queue", name, known)


def _occurs(wanted: Filter, timer: Callable[[], float]) -> TaskSteps[bool]:
    for one in _by_state(wanted):
        if (yield from _some(one, timer)):
            return True
    return False


def _by_state(wanted: Filter) -> Iterator[Filter]:
    """Failed and unfinished deliveries are found by their indexes; of all deliveries, the newest are scanned."""
    yield replace(wanted, statuses=(Status.FAILED,))
    yield replace(wanted, statuses=(Status.PENDING, Status.IN_FLIGHT))
    yield wanted


def _some(wanted: Filter, timer: Callable[[], float]) -> TaskSteps[bool]:
    found = yield from first_match(lambda below: pagination.delivery_page(wanted, 1, below), None, timer)
    return bool(found.items)
