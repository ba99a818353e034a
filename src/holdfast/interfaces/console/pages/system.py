"""Pages for queues, consumers, projectors, schedules, webhooks, circuit breakers, keys, workers and the audit log."""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage, read_number
from holdfast.interfaces.console.user import Role
from holdfast.interfaces.presentation.filters import parse_choice, parse_range, parse_target
from holdfast.ops.service import Operations
from holdfast.stores.integrations.idempotency import KeyStatus, RecordCursor


def _list_page(
    name: str, read: Callable[[Operations], Awaitable[Any]]
) -> Callable[[ConsoleRequest], Awaitable[HtmlPage]]:
    """A page that lists all items of one kind."""

    async def show(request: ConsoleRequest) -> HtmlPage:
        found = await request.cache.read(name, read)
        return HtmlPage(f"{name}.html", {"rows": found, "now": await _now(request)})

    return show


queues = _list_page("queues", lambda ops: ops.queues())
consumers = _list_page("consumers", lambda ops: ops.consumers())
breakers = _list_page("breakers", lambda ops: ops.breakers())


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
    return HtmlPage("projectors.html", {"rows": found, "relays": relays, "now": await _now(request)})


async def webhooks(request: ConsoleRequest) -> HtmlPage:
    shown = request.user.role.covers(Role.OPERATOR)
    found = await request.cache.read(f"webhooks {shown}", lambda ops: ops.webhooks(show_path=shown))
    tenant = request.query.get("tenant")
    return HtmlPage(
        "webhooks.html",
        {"rows": [one for one in found if tenant in (None, one.tenant)], "tenant": tenant, "now": await _now(request)},
    )


async def workers(request: ConsoleRequest) -> HtmlPage:
    found = await request.cache.read("workers", lambda ops: ops.workers())
    shown = sorted(found, key=lambda one: (not one.alive, -one.generation, one.id))
    return HtmlPage("workers.html", {"rows": shown, "now": await _now(request)})


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
    found = await request.ops.audit(
        limit=PAGE + 1,
        before=before,
        target=parse_target(query["target"]) if "target" in query else None,
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
            "options": "".join(
                f" --{'by' if name == 'actor' else name} {shlex.quote(value)}" for name, value in chosen.items()
            ),
            "now": now,
        },
    )


async def _now(request: ConsoleRequest) -> datetime:
    return await request.ops.now()
