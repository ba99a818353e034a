"""Changes of flow control at run time: limits and rates of consumers and queues, and pauses of single keys."""

from typing import Any

import orjson

from holdfast.core.errors import NotFound, Refused
from holdfast.core.flow import bounded_key, check_count, parse_rate, stored_flow
from holdfast.stores.admin.actions import audited
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.queries.flow_keys import keyed_lanes, lane_values

_EXAMPLES = {"limit": "limit=Limit(10)", "rate": "rate=Rate('90/10s')"}

_STATEMENTS = {
    "consumer": ("lock_consumer_flow", "override_consumer_flow"),
    "queue": ("lock_queue_flow", "override_queue_flow"),
}


@operation
def change_flow(
    kind: str, name: str, actor: str, reason: str | None, *, limit: int | None, rate: str | None, reset: bool
) -> Steps[bool]:
    """Sets the limit or rate of a consumer or queue; False if the values were the same.

    `reset` returns to the declared values before the given ones apply. Workers use the new values from their next scan for
    due deliveries on. Only what is declared can be changed, because without a declaration deliveries have no key.
    """
    given = _given(limit, rate)
    lock, override_flow = _STATEMENTS[kind]
    rows = yield Query(lock, {"name": name})
    if not rows:
        if kind == "queue":
            raise NotFound(
                "queue with a limit",
                name,
                f"declare it with Queue({name!r}, limit=Limit(20)) in the app, and start a worker",
            )
        raise NotFound(kind, name, f"`holdfast {kind}s list` shows the {kind}s")
    flow, override = rows[0]
    settings = None if flow is None else stored_flow(flow)
    for option, declared in (
        ("limit", settings and settings.limit),
        ("rate", settings and settings.rate_count),
    ):
        if option in given and declared is None:
            raise Refused(
                f"change the {option} of",
                f"{kind} {name}",
                f"declared without a {option}",
                f"add {_EXAMPLES[option]} to its declaration and deploy it; an operator can change it from then on",
            )
    before: dict[str, Any] = {} if override is None else orjson.loads(override)
    after = {**({} if reset else before), **given}
    if after == before:
        return False
    text = orjson.dumps(after, option=orjson.OPT_SORT_KEYS).decode() if after else None
    yield Query(override_flow, {"name": name, "flow_override": text})
    yield audited(actor, "limit", kind, name, reason, {"before": before or None, "after": after or None})
    return True


@operation
def pause_key(consumer: str, key: str, actor: str, reason: str | None) -> Steps[bool]:
    """Excludes one key of a consumer from claims until it is resumed; False if it was paused. Current runs finish."""
    if not (yield Query("pause_key", {"consumer": consumer, "flow_key": bounded_key(key)})):
        return False
    yield audited(actor, "pause-key", "consumer", consumer, reason, {"key": key})
    return True


@operation
def resume_key(consumer: str, key: str, actor: str, reason: str | None) -> Steps[bool]:
    """Includes one key in claims again and makes its next due delivery due now; False if it was not paused."""
    values: dict[str, object] = {"consumer": consumer, "flow_key": bounded_key(key)}
    if not (yield Query("resume_key", values)):
        return False
    lanes = yield from keyed_lanes(consumer)
    yield Query("wake_key", {**values, **lane_values(lanes)})
    yield audited(actor, "resume-key", "consumer", consumer, reason, {"key": key})
    return True


def _given(limit: int | None, rate: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if limit is not None:
        given["limit"] = check_count("limit", limit, "5")
    if rate is not None:
        count, window = parse_rate(rate)
        given["rate"] = [count, window.total_seconds()]
    return given
