"""Changes of flow control by operators: limits and rates of consumers and queues, and pauses of single keys."""

from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.flow import bounded_key
from holdfast.ops.queries.filter_names import check_filter
from holdfast.ops.queries.flow_keys import consumer_with_flow
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin import flow as changes
from holdfast.stores.queries.flow_keys import KeySource, flow_keys
from holdfast.stores.queries.query import Filter


def limit_consumer(
    name: str,
    *,
    actor: str,
    reason: str | None = None,
    limit: int | None = None,
    rate: str | None = None,
    reset: bool = False,
) -> TaskSteps[bool]:
    """Changes the limit or rate of a consumer at run time; false if the values were the same.

    `reset` returns to the declared values before the given ones apply. Workers use the new values within about a second.
    """
    return (yield from _change("consumer", name, actor, reason, limit, rate, reset))


def limit_queue(
    name: str,
    *,
    actor: str,
    reason: str | None = None,
    limit: int | None = None,
    rate: str | None = None,
    reset: bool = False,
) -> TaskSteps[bool]:
    """Changes the limit or rate of a queue at run time, as `limit_consumer` does."""
    return (yield from _change("queue", name, actor, reason, limit, rate, reset))


def pause_key(
    consumer: str, key: str, *, actor: str, reason: str | None = None, force: bool = False
) -> TaskSteps[bool]:
    """Stops claiming one key of a consumer until it is resumed; running deliveries finish. False if it was paused.

    A key without deliveries is `NotFound` unless `force`, because a typing error must not look like a pause.
    """
    _, settings = yield from consumer_with_flow(consumer)
    if settings.key is None:
        raise Refused(
            "pause one key of", f"consumer {consumer}", "declared without a key", f"use `consumers pause {consumer}`"
        )
    stored = bounded_key(key)
    sources = (KeySource.WAITING, KeySource.RUNNING, KeySource.DEAD)
    if not force and (yield from transact(flow_keys(consumer, sources, stored, 1))) != [stored]:
        raise NotFound(
            "key", key or "''", f"consumer {consumer} has no deliveries with it; force (--force) pauses it anyway"
        )
    return (yield from transact(changes.pause_key(consumer, key, actor, reason)))


def resume_key(consumer: str, key: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Resumes one key of a consumer; false if it was not paused."""
    yield from consumer_with_flow(consumer)
    resumed = yield from transact(changes.resume_key(consumer, key, actor, reason))
    yield from call_store(lambda store: store.hint_sync())
    return resumed


def _change(
    kind: str, name: str, actor: str, reason: str | None, limit: int | None, rate: str | None, reset: bool
) -> TaskSteps[bool]:
    if limit is None and rate is None and not reset:
        raise ConfigurationError("nothing to change; give a limit, a rate or a reset (--limit, --rate, --reset)")
    yield from check_filter(Filter(queue=name) if kind == "queue" else Filter(consumers=(name,)))
    changed = yield from transact(changes.change_flow(kind, name, actor, reason, limit=limit, rate=rate, reset=reset))
    yield from call_store(lambda store: store.hint_sync())
    return changed
