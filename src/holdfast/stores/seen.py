"""Keys a consumer has dealt with lately: the window in SQL."""

from datetime import timedelta

from holdfast.stores.operation import Query, Steps, operation


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
