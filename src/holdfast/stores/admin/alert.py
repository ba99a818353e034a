"""Whose turn it is to tell of a group of failures: one of many workers, once in a quiet period."""

from datetime import timedelta
from typing import NamedTuple

from holdfast.stores.operation import Query, Steps, operation


class AlertDecision(NamedTuple):
    """Whether to tell of a group now, how many came in all since the last time, and how long to be quiet from here."""

    tell: bool
    alike: int
    quiet: timedelta


@operation
def decide_alert(consumer: str, fingerprint: str, alike: int, quiet: timedelta) -> Steps[AlertDecision]:
    """Asks to tell of `alike` more failures of a group. Whoever is refused has them counted for the one who tells next."""
    group = {"consumer": consumer, "fingerprint": fingerprint}
    if (yield Query("add_alert_group", group)):
        return AlertDecision(True, alike, quiet)
    ((counted, due, left),) = yield Query("alert_group", {**group, "quiet": quiet})
    if due and alike + counted:
        yield Query("tell_alert_group", group)
        return AlertDecision(True, alike + counted, quiet)
    if alike:
        yield Query("count_alert_group", {**group, "alike": alike})
    # SQLite counts in milliseconds. A transaction that began before the one that told sees it as yet to come.
    return AlertDecision(
        False, alike, min(quiet, left if isinstance(left, timedelta) else timedelta(milliseconds=left))
    )


@operation
def forget_alert_groups(older_than: timedelta) -> Steps[None]:
    """Removes groups that nobody was told of for so long."""
    yield Query("forget_alert_groups", {"older_than": older_than})
