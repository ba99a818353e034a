"""Pages for queues, consumers, projectors, schedules, webhooks, circuit breakers, keys, workers and the audit log."""

import shlex
from collections.abc import Mapping
from datetime import datetime

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.choose import read_moment
from holdfast.interfaces.console.visit import PAGE, Page, Visit, read_number
from holdfast.interfaces.console.visitor import Role
from holdfast.stores.idempotency import Mark, Progress


async def queues(visit: Visit) -> Page:
    found = await visit.watch.read("queues", lambda ops: ops.queues())
    return Page("queues.html", {"rows": found, "now": await _now(visit)})


async def consumers(visit: Visit) -> Page:
    found = await visit.watch.read("consumers", lambda ops: ops.consumers())
    return Page("consumers.html", {"rows": found, "now": await _now(visit)})


async def projectors(visit: Visit) -> Page:
    found = await visit.watch.read("projectors", lambda ops: ops.projectors())
    relays = await visit.watch.read("relays", lambda ops: ops.relays())
    return Page("projectors.html", {"rows": found, "relays": relays, "now": await _now(visit)})


async def schedules(visit: Visit) -> Page:
    found = await visit.watch.read("schedules", lambda ops: ops.schedules())
    return Page("schedules.html", {"rows": found, "now": await _now(visit)})


async def webhooks(visit: Visit) -> Page:
    shown = visit.visitor.role.covers(Role.OPERATOR)
    found = await visit.watch.read(f"webhooks {shown}", lambda ops: ops.webhooks(show_path=shown))
    wanted = visit.query.get("tenant")
    return Page(
        "webhooks.html",
        {"rows": [one for one in found if wanted in (None, one.tenant)], "tenant": wanted, "now": await _now(visit)},
    )


async def breakers(visit: Visit) -> Page:
    found = await visit.watch.read("breakers", lambda ops: ops.breakers())
    return Page("breakers.html", {"rows": found, "now": await _now(visit)})


async def workers(visit: Visit) -> Page:
    found = await visit.watch.read("workers", lambda ops: ops.workers())
    shown = sorted(found, key=lambda one: (not one.alive, -one.generation, one.id))
    return Page("workers.html", {"rows": shown, "now": await _now(visit)})


async def keys(visit: Visit) -> Page:
    query = visit.query
    status = query.get("status")
    if status is not None and status not in set(Progress):
        raise ConfigurationError(f"{status[:40]!r} is not a valid key state; valid states are {', '.join(Progress)}")
    found = await visit.ops.idempotency_keys(
        scope=query.get("scope"),
        key=query.get("key"),
        status=None if status is None else Progress(status),
        limit=PAGE + 1,
        before=_mark(query) if "after_key" in query else None,
    )
    last = found[PAGE - 1] if len(found) > PAGE else None
    return Page(
        "keys.html",
        {
            "rows": found[:PAGE],
            "next": visit.again(after_at=last.expires_at.isoformat(), after_scope=last.scope, after_key=last.key)
            if last
            else None,
            "newest": visit.again(after_at=None, after_scope=None, after_key=None) if "after_key" in query else None,
            "chosen": {name: query[name] for name in ("scope", "key", "status") if name in query},
            "states": list(Progress),
            "now": await _now(visit),
        },
    )


def _mark(query: Mapping[str, str]) -> Mark:
    try:
        at = datetime.fromisoformat(query.get("after_at", ""))
    except ValueError:
        raise ConfigurationError("`after_at` is not a valid timestamp; start with the newest page") from None
    return Mark(at, query.get("after_scope", ""), query["after_key"])


async def audit(visit: Visit) -> Page:
    query = visit.query
    kind, colon, target = query.get("target", "").partition(":")
    if "target" in query and not (kind and colon and target):
        raise ConfigurationError(
            f"{query['target'][:60]!r} is not a valid target; write KIND:NAME, for example queue:mail"
        )
    before = read_number(query.get("before", ""))
    chosen = {name: query[name] for name in ("actor", "action", "since", "until") if name in query}
    now = await _now(visit)
    found = await visit.ops.audit(
        limit=PAGE + 1,
        before=before,
        target=(kind, target) if colon else None,
        actor=chosen.get("actor"),
        action=chosen.get("action"),
        since=read_moment(chosen.get("since"), now),
        until=read_moment(chosen.get("until"), now),
    )
    return Page(
        "audit.html",
        {
            "rows": found[:PAGE],
            "next": visit.again(before=found[PAGE - 1].id) if len(found) > PAGE else None,
            "newest": visit.again(before=None) if before else None,
            "target": query.get("target"),
            "chosen": chosen,
            "options": "".join(
                f" --{'by' if name == 'actor' else name} {shlex.quote(value)}" for name, value in chosen.items()
            ),
            "now": now,
        },
    )


async def _now(visit: Visit) -> datetime:
    return await visit.ops.now()
