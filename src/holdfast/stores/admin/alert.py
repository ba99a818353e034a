"""Rate limit of alerts: for each failure group one of all workers alerts once in a quiet period."""

from datetime import timedelta
from typing import NamedTuple

from holdfast.stores.operation import Query, Steps, operation


class AlertDecision(NamedTuple):
    """Whether to alert now, the number of failures since the last alert, and the remaining quiet period."""

    tell: bool
    alike: int
    quiet: timedelta


@operation
def decide_alert(consumer: str, fingerprint: str, alike: int, quiet: timedelta) -> Steps[AlertDecision]:
    """Decides whether to send an alert for `alike` more failures of a group. If not, the next alert counts them."""
    group = {"consumer": consumer, "fingerprint": fingerprint}
    if (yield Query("add_alert_group", group)):
        return AlertDecision(True, alike, quiet)
    ((counted, due, left),) = yield Query("alert_group", {**group, "quiet": quiet})
    if due and alike + counted:
        yield Query("tell_alert_group", group)
        return AlertDecision(True, alike + counted, quiet)
    if alike:
        yield Query("count_alert_group", {**group, "alike": alike})
    # SQLite returns milliseconds. A transaction that began before the last alert sees that alert in the future.
    return AlertDecision(
        False, alike, min(quiet, left if isinstance(left, timedelta) else timedelta(milliseconds=left))
    )


@operation
def forget_alert_groups(older_than: timedelta) -> Steps[None]:
    """Removes groups whose last alert is older than `older_than`."""
    yield Query("forget_alert_groups", {"older_than": older_than})
