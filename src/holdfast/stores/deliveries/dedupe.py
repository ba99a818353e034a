"""Deduplication windows: the keys that a consumer has handled recently."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from holdfast.stores.operation import Query, Steps, operation

_RERUN_KEPT = timedelta(days=30)


def window_key(source: str, key: str | None, message_id: UUID) -> str:
    """The key of a message in a window; `count_plan_duplicates` builds the same key in SQL."""
    return str(message_id) if key is None else f"{source}:{key}"


@operation(reads=True)
def was_seen(consumer: str, key: str) -> Steps[bool]:
    """Whether this key was recorded and has not expired."""
    return bool((yield Query("was_seen", {"consumer": consumer, "key": key})))


@operation
def record_seen(consumer: str, key: str, window: timedelta) -> Steps[None]:
    """Records a key that expires after `window`."""
    yield Query("record_seen", {"consumer": consumer, "key": key, "window": window})


@operation(single=True)
def forget_seen() -> Steps[None]:
    """Removes expired keys."""
    yield Query("forget_seen")


def record_reruns(ids: Sequence[UUID]) -> Query:
    """Lets deliveries run although their key was handled. This also applies to windows in memory or Redis."""
    return Query("record_reruns", {"ids": list(ids), "window": _RERUN_KEPT})


@operation(reads=True)
def is_rerun(consumer: str, delivery_id: UUID) -> Steps[bool]:
    """Whether an operator requested another run of this delivery although it was delivered."""
    return bool((yield Query("was_seen", {"consumer": consumer, "key": f"rerun {delivery_id}"})))
