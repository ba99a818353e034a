"""Pages for deliveries, dead letters, failure groups, messages, request traces and search."""

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from starlette.responses import RedirectResponse

from holdfast.core.errors import NotFound
from holdfast.interfaces.console.pages.failures import group_card, group_detail
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage, unknown_name
from holdfast.interfaces.presentation.deliveries import next_commands, search_scope
from holdfast.interfaces.presentation.filters import (
    DEAD_LETTER_STATES,
    FIELDS,
    STATES,
    as_cli_options,
    parse_filter,
    parse_id,
    parse_range,
)
from holdfast.ops.queries.deliveries import DeliveryDetail
from holdfast.ops.queries.name_search import ItemKind, NamedItem


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event of a delivery's timeline. `tone` selects icon and color."""

    at: datetime
    tone: str
    title: str
    text: str = ""
    trace: str | None = None
    took: tuple[datetime | None, datetime] | None = None


async def deliveries(request: ConsoleRequest) -> HtmlPage:
    return await _list_page(request, dead=False)


async def dead_letters(request: ConsoleRequest) -> HtmlPage:
    return await _list_page(request, dead=True)


async def _list_page(request: ConsoleRequest, *, dead: bool) -> HtmlPage:
    chosen = {name: request.query[name] for name in FIELDS if name in request.query and not (dead and name == "status")}
    now = await request.ops.now()
    state = request.query.get("state", DEAD_LETTER_STATES[0]) if dead else None
    filters = parse_filter(chosen, now, state=state)
    before = parse_id(request.query["before"]) if "before" in request.query else None
    found = await request.ops.delivery_page(filters, limit=PAGE, before=before)
    card = await group_card(request, chosen["group"], chosen.get("consumer")) if dead and "group" in chosen else None
    return HtmlPage(
        "deliveries.html",
        {
            "rows": found.items,
            **request.page_links(found.next),
            "chosen": chosen,
            "dead": dead,
            "state": state,
            "dead_letter_states": DEAD_LETTER_STATES,
            "states": STATES,
            "card": card,
            "about": None if card is None or before else await group_detail(request, card, now),
            "now": now,
            "unknown": None if found.items or found.next else await unknown_name(request.ops.check_filter(filters)),
            "command": f"holdfast {'dlq' if dead else 'deliveries'} list{as_cli_options(chosen)}"
            + (f" --state {state}" if state not in (None, DEAD_LETTER_STATES[0]) else ""),
        },
    )


async def delivery(request: ConsoleRequest) -> HtmlPage:
    detail = await request.ops.delivery(parse_id(request.http.path_params["id"]))
    return HtmlPage(
        "delivery.html",
        {
            "detail": detail,
            "row": detail.listed.delivery,
            "now": detail.now,
            "events": timeline(detail),
            "commands": list(next_commands(detail)),
            "request_id": detail.message.headers.get("request_id") if detail.message else None,
        },
    )


def timeline(detail: DeliveryDetail) -> list[TimelineEvent]:
    """Returns the events of a delivery, oldest first."""
    row, message = detail.listed.delivery, detail.message
    found: list[TimelineEvent] = []
    if message is not None:
        request = message.headers.get("request_id")
        if request:
            found.append(TimelineEvent(message.occurred_at, "request", "Request", request))
        found.append(
            TimelineEvent(
                message.occurred_at, "message", "Published", f"{detail.listed.type} by {detail.listed.source}"
            )
        )
    # SQLite stores milliseconds, so a delivery can appear up to one millisecond older than its message.
    accepted = row.created_at if message is None else max(row.created_at, message.occurred_at)
    found.append(TimelineEvent(accepted, "pending", "Accepted", f"for {row.consumer} in queue {row.queue}"))
    for run in detail.runs:
        good = run.outcome in ("succeeded", "deliver")
        error = f"{run.error_type}: {run.error}" if run.error_type else (run.error or "")
        found.append(
            TimelineEvent(
                run.completed_at,
                "delivered" if good else "attempt",
                f"Attempt {run.attempt}: {run.outcome.replace('_', ' ')}",
                f"on {run.worker}"
                + (f", generation {run.generation}" if run.generation is not None else "")
                + (f" · {error}" if error else ""),
                run.trace,
                (run.started_at, run.completed_at),
            )
        )
    for cycle in row.failure_history:
        if cycle.replayed_at is not None:
            why = f": {cycle.reason}" if cycle.reason else ""
            found.append(
                TimelineEvent(
                    cycle.replayed_at,
                    "replayed",
                    f"Replayed by {cycle.replayed_by}",
                    f"after {cycle.attempts} attempts in generation {cycle.generation}{why}",
                )
            )
    replays = {cycle.replayed_at for cycle in row.failure_history}
    for entry in detail.audit:
        if entry.action == "replay" and replays:
            continue
        found.append(
            TimelineEvent(entry.at, "audit", f"{entry.action.capitalize()} by {entry.actor}", entry.reason or "")
        )
    if row.status == "delivered" and row.completed_at is not None and not any(one.tone == "delivered" for one in found):
        found.append(TimelineEvent(row.completed_at, "delivered", "Delivered"))
    found.sort(key=lambda one: one.at)
    if row.dead and row.completed_at is not None:
        # The current state comes last, even if its attempt was recorded slightly later.
        found.append(TimelineEvent(row.completed_at, "failed", "Dead letter", "waiting to be replayed or discarded"))
    return found


async def messages(request: ConsoleRequest) -> HtmlPage:
    now = await request.ops.now()
    chosen = request.chosen("type", "source", "key", "since", "until")
    before = parse_id(request.query["before"]) if "before" in request.query else None
    filters: dict[str, Any] = {**chosen, **parse_range(chosen, now)}
    found = await request.ops.message_page(**filters, limit=PAGE, before=before)
    return HtmlPage(
        "messages.html",
        {
            "rows": found.items,
            **request.page_links(found.next),
            "chosen": chosen,
            "now": now,
            "command": "holdfast messages list"
            + "".join(f" --{name} {shlex.quote(value)}" for name, value in chosen.items()),
        },
    )


async def message(request: ConsoleRequest) -> HtmlPage:
    found = await request.ops.message(parse_id(request.http.path_params["id"]))
    return HtmlPage(
        "message.html", {"message": found.message, "deliveries": found.deliveries, "now": await request.ops.now()}
    )


async def request_trace(request: ConsoleRequest) -> HtmlPage:
    """Trace of one request: its messages, their deliveries with all attempts, and operator actions."""
    after = parse_id(request.query["after"]) if "after" in request.query else None
    trace = await request.ops.trace_request(request.query.get("id", "").strip(), after=after)
    return HtmlPage(
        "request.html",
        {
            "trace": trace,
            **request.page_links(trace.next, cursor="after"),
            "now": await request.ops.now(),
        },
    )


async def find(request: ConsoleRequest) -> RedirectResponse:
    """Redirects to the delivery, run, message, plan or request with this ID, or to a text search."""
    filters = request.query.get("q", "").strip()
    try:
        id = UUID(filters)
    except ValueError:
        return await _search_redirect(request, filters) if filters else RedirectResponse(request.url("/"), 303)
    for path, read in (
        ("/deliveries", request.ops.delivery),
        ("/workflows", request.ops.workflow_run),
        ("/messages", request.ops.message),
        ("/plans", request.ops.plan),
        ("/job-groups", request.ops.job_group),
    ):
        try:
            await read(id)
        except NotFound:
            continue
        return RedirectResponse(request.url(f"{path}/{id}"), 303)
    # A request ID may also be a UUID.
    return await _search_redirect(request, filters)


async def _search_redirect(request: ConsoleRequest, text: str) -> RedirectResponse:
    path = request.url("/requests", id=text) if await request.ops.has_request(text) else request.url("/search", q=text)
    return RedirectResponse(path, 303)


async def search(request: ConsoleRequest) -> HtmlPage:
    """Failure groups and deliveries that contain a text, and the request with this ID."""
    text = request.query.get("q", "").strip()
    if not text:
        return HtmlPage("search.html", {"text": "", "found": None})
    found = await request.ops.search(text, limit=PAGE, after=request.query.get("after"))
    return HtmlPage(
        "search.html",
        {
            "text": text,
            "found": found,
            "scope": search_scope(found),
            "url_of": lambda one: _item_url(request, one),
            "request_id": text if any(one.field == "request_id" for one in found.matches) else None,
            **request.page_links(found.next, cursor="after"),
        },
    )


def _item_url(request: ConsoleRequest, item: NamedItem) -> str:
    """The page that shows an item with a name."""
    match item.kind:
        case ItemKind.CONSUMER:
            return request.url("/consumers", name=item.name)
        case ItemKind.QUEUE:
            return request.url("/queues", name=item.name)
        case ItemKind.SCHEDULE:
            return request.url("/schedules", prefix=item.name)
        case ItemKind.WEBHOOK:
            return request.url("/webhooks", text=item.name)
        case ItemKind.BREAKER:
            return request.url("/breakers", name=item.name)
        case ItemKind.WORKFLOW_RUN:
            return request.url(f"/workflows/{item.name}")
        case _:
            assert_never(item.kind)
