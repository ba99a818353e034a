"""Pages for queues, consumers, projectors, schedules, webhooks, circuit breakers, keys, workers and the audit log."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.pages.name_list import contains, name_list
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage, read_number, unknown_name
from holdfast.interfaces.console.user import Role
from holdfast.interfaces.presentation.filters import parse_choice, parse_range, parse_target
from holdfast.interfaces.presentation.states import (
    CONSUMER_STATES,
    QUEUE_STATES,
    WEBHOOK_STATES,
    consumer_state,
    queue_state,
    webhook_state,
)
from holdfast.stores.integrations.idempotency import KeyStatus, RecordCursor


async def queues(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("queues", lambda ops: ops.queues())
    filters = {"name": contains(lambda one: one.name), "state": lambda one, text: queue_state(one) == text}
    return await _list_page(request, "queues", found, lambda one: one.name, filters, QUEUE_STATES)


async def consumers(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("consumers", lambda ops: ops.consumers())
    filters = {
        "name": contains(lambda one: one.name, lambda one: " ".join(one.patterns)),
        "queue": lambda one, text: one.queue == text,
        "state": lambda one, text: consumer_state(one) == text,
    }
    return await _list_page(request, "consumers", found, lambda one: one.name, filters, CONSUMER_STATES)


async def breakers(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("breakers", lambda ops: ops.breakers())
    filters = {"name": contains(lambda one: one.name), "state": lambda one, text: one.state == text}
    filters |= await _times(request, lambda one: one.since)
    return await _list_page(request, "breakers", found, lambda one: one.name, filters, tuple(CircuitState))


async def webhooks(request: ConsoleRequest) -> HtmlPage:
    shown = request.user.role.covers(Role.OPERATOR)
    found = await request.cache.read(f"webhooks {shown}", lambda ops: ops.webhooks(show_path=shown))
    filters = {
        "text": contains(lambda one: one.url, lambda one: one.id, lambda one: " ".join(one.events)),
        "tenant": lambda one, text: one.tenant == text,
        "state": lambda one, text: webhook_state(one) == text,
    }
    return await _list_page(request, "webhooks", found, lambda one: one.id, filters, WEBHOOK_STATES)


async def workers(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("workers", lambda ops: ops.workers())
    shown = sorted(found, key=lambda one: (not one.alive, -one.generation, one.id))
    filters = {
        "name": contains(lambda one: one.id),
        "consumer": lambda one, text: text in one.consumers,
        "state": lambda one, text: one.alive == (text == "alive"),
    }
    filters |= await _times(request, lambda one: one.started_at)
    return await _list_page(request, "workers", shown, lambda one: one.id, filters, ("alive", "gone"))


async def _times(
    request: ConsoleRequest, at: Callable[[Any], datetime | None]
) -> dict[str, Callable[[Any, str], bool]]:
    """The filters by the time range in the URL. An item without a time is in none."""
    times = parse_range(request.chosen("since", "until"), await _now(request))
    return {
        "since": lambda one, _: (found := at(one)) is not None and found >= times["since"],
        "until": lambda one, _: (found := at(one)) is not None and found < times["until"],
    }


async def _list_page(
    request: ConsoleRequest,
    name: str,
    found: Sequence[Any],
    key: Callable[[Any], str],
    filters: Mapping[str, Callable[[Any, str], bool]],
    states: Sequence[str],
) -> HtmlPage:
    """A page of a list of names. `states` are the choices of its filter by state."""
    if "state" in request.query:
        parse_choice(request.query["state"], states, "state")
    return HtmlPage(
        f"{name}.html",
        {**name_list(request, found, key, filters), "states": states, "now": await _now(request)},
    )


async def schedules(request: ConsoleRequest) -> HtmlPage:
    chosen = request.chosen("job", "prefix")
    found = await request.ops.schedules(**chosen, after=request.query.get("after"), limit=PAGE + 1)
    return HtmlPage(
        "schedules.html",
        {
            "rows": found[:PAGE],
            **request.page_links(found[PAGE - 1].name if len(found) > PAGE else None, cursor="after"),
            "chosen": chosen,
            "now": await _now(request),
        },
    )


async def projectors(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("projectors", lambda ops: ops.projectors())
    relays = await request.cache.read("relays", lambda ops: ops.relays())
    page = name_list(request, found, lambda one: one.name, {"name": contains(lambda one: one.name)})
    return HtmlPage("projectors.html", {**page, "relays": relays, "now": await _now(request)})


async def keys(request: ConsoleRequest) -> HtmlPage:
    query = request.query
    status = query.get("status")
    found = await request.ops.idempotency_keys(
        scope=query.get("scope"),
        key=query.get("key"),
        status=None if status is None else KeyStatus(parse_choice(status, KeyStatus, "key state")),
        limit=PAGE + 1,
        before=_mark(query) if "after_key" in query else None,
    )
    last = found[PAGE - 1] if len(found) > PAGE else None
    return HtmlPage(
        "keys.html",
        {
            "rows": found[:PAGE],
            "next": request.with_query(after_at=last.expires_at.isoformat(), after_scope=last.scope, after_key=last.key)
            if last
            else None,
            "newest": request.with_query(after_at=None, after_scope=None, after_key=None)
            if "after_key" in query
            else None,
            "chosen": request.chosen("scope", "key", "status"),
            "states": list(KeyStatus),
            "now": await _now(request),
        },
    )


def _mark(query: Mapping[str, str]) -> RecordCursor:
    try:
        at = datetime.fromisoformat(query.get("after_at", ""))
    except ValueError:
        raise ConfigurationError("`after_at` is not a valid timestamp; start with the newest page") from None
    return RecordCursor(at, query.get("after_scope", ""), query["after_key"])


async def audit(request: ConsoleRequest) -> HtmlPage:
    query = request.query
    before = read_number(query.get("before", ""))
    now = await _now(request)
    chosen = request.chosen("actor", "action", "since", "until")
    target = parse_target(query["target"]) if "target" in query else None
    found = await request.ops.audit(
        limit=PAGE + 1,
        before=before,
        target=target,
        actor=chosen.get("actor"),
        action=chosen.get("action"),
        **parse_range(chosen, now),
    )
    return HtmlPage(
        "audit.html",
        {
            "rows": found[:PAGE],
            **request.page_links(found[PAGE - 1].id if len(found) > PAGE else None),
            "target": query.get("target"),
            "chosen": chosen,
            "unknown": None
            if found
            else await unknown_name(request.ops.check_audit_filter(action=chosen.get("action"), target=target)),
            "options": "".join(
                f" --{'by' if name == 'actor' else name} {shlex.quote(value)}" for name, value in chosen.items()
            ),
            "now": now,
        },
    )


async def _now(request: ConsoleRequest) -> datetime:
    return await request.ops.now()
