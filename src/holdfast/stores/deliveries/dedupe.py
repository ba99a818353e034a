"""Keys a consumer has dealt with lately: the window in SQL."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

_RERUN_KEPT = timedelta(days=30)


def window_key(source: str, key: str | None, message_id: UUID) -> str:
    """What a window knows a message by; `seen_deliveries` builds the same in SQL."""
    return str(message_id) if key is None else f"{source}:{key}"


@operation(reads=True)
def was_seen(consumer: str, key: str) -> Steps[bool]:
    """Whether this key was recorded and its time is not over."""
    return bool((yield Query("was_seen", {"consumer": consumer, "key": key})))


@operation
def record_seen(consumer: str, key: str, window: timedelta) -> Steps[None]:
    """Records a key for as long as the window lasts from now."""
    yield Query("record_seen", {"consumer": consumer, "key": key, "window": window})


@operation(single=True)
def forget_seen() -> Steps[None]:
    """Removes keys whose time is over."""
    yield Query("forget_seen")


@operation(reads=True)
def seen_deliveries(ids: Sequence[UUID]) -> Steps[frozenset[UUID]]:
    """Those of the deliveries that are inside their consumer's window, as far as it is kept in the store."""
    return frozenset(as_uuid(row[0]) for row in (yield Query("seen_deliveries", {"ids": list(ids)})))


def record_reruns(ids: Sequence[UUID]) -> Query:
    """Lets deliveries run although their key was dealt with. Also for windows in memory or Redis: the worker asks."""
    return Query("record_reruns", {"ids": list(ids), "window": _RERUN_KEPT})


@operation(reads=True)
def is_rerun(consumer: str, delivery_id: UUID) -> Steps[bool]:
    """Whether an operator asked that this delivery run again although it was done."""
    return bool((yield Query("was_seen", {"consumer": consumer, "key": f"rerun {delivery_id}"})))
