"""Pages for deliveries, dead letters, failure groups, messages, request traces and search."""

import shlex
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from starlette.responses import RedirectResponse

from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.interfaces.cli.delivery_report import next_commands
from holdfast.interfaces.cli.search import reach
from holdfast.interfaces.console.choose import DECIDED, FIELDS, STATES, as_options, read_filter
from holdfast.interfaces.console.overview import cut_off, failure_groups, suspected
from holdfast.interfaces.console.visit import PAGE, Page, Visit, read_id
from holdfast.ops.deliveries import DeliveryDetail


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a delivery's timeline. `tone` selects icon and colour."""

    at: datetime
    tone: str
    title: str
    text: str = ""
    trace: str | None = None
    took: tuple[datetime | None, datetime] | None = None


async def deliveries(visit: Visit) -> Page:
    return await _listed(visit, dead=False)


async def dead_letters(visit: Visit) -> Page:
    return await _listed(visit, dead=True)


async def _listed(visit: Visit, *, dead: bool) -> Page:
    chosen = {name: visit.query[name] for name in FIELDS if name in visit.query and not (dead and name == "status")}
    now = await visit.ops.now()
    decided = visit.query.get("state", DECIDED[0]) if dead else None
    if decided is not None and decided not in DECIDED:
        raise ConfigurationError(
            f"{decided[:40]!r} is not a valid state of dead letters; valid states are {', '.join(DECIDED)}"
        )
    wanted = read_filter(chosen, now, decided=decided)
    before = read_id(visit.query["before"]) if "before" in visit.query else None
    found = await visit.ops.delivery_page(wanted, limit=PAGE, before=before)
    group = None
    if dead and "group" in chosen:
        group = next(
            (
                one
                for one in await failure_groups(visit)
                if one.fingerprint == chosen["group"] and chosen.get("consumer", one.consumer) == one.consumer
            ),
            None,
        )
    return Page(
        "deliveries.html",
        {
            "rows": found.items,
            "next": visit.again(before=found.next) if found.next else None,
            "newest": visit.again(before=None) if before else None,
            "chosen": chosen,
            "dead": dead,
            "decided": decided,
            "decisions": DECIDED,
            "states": STATES,
            "group": group,
            "now": now,
            "command": f"holdfast {'dlq' if dead else 'deliveries'} list{as_options(chosen)}"
            + (f" --state {decided}" if decided not in (None, DECIDED[0]) else ""),
        },
    )


async def groups(visit: Visit) -> Page:
    now = await visit.ops.now()
    workers = await visit.watch.read("workers", lambda ops: ops.workers())
    found = await failure_groups(visit)
    full = cut_off(found)
    if "consumer" in visit.query:
        found = [one for one in found if one.consumer == visit.query["consumer"]]
    return Page(
        "groups.html",
        {
            "suspects": suspected(found, workers, now),
            "now": now,
            "full": full,
            "consumer": visit.query.get("consumer"),
        },
    )


async def delivery(visit: Visit) -> Page:
    detail = await visit.ops.delivery(read_id(visit.request.path_params["id"]))
    return Page(
        "delivery.html",
        {
            "detail": detail,
            "row": detail.listed.delivery,
            "now": detail.now,
            "moments": timeline(detail),
            "commands": list(next_commands(detail)),
            "request_id": detail.message.headers.get("request_id") if detail.message else None,
        },
    )


def timeline(detail: DeliveryDetail) -> list[Moment]:
    """Returns the events of a delivery, oldest first."""
    row, message = detail.listed.delivery, detail.message
    found: list[Moment] = []
    if message is not None:
        request = message.headers.get("request_id")
        if request:
            found.append(Moment(message.occurred_at, "request", "Request", request))
        found.append(
            Moment(message.occurred_at, "message", "Published", f"{detail.listed.type} by {detail.listed.source}")
        )
    # SQLite stores milliseconds, so a delivery can appear up to one millisecond older than its message.
    accepted = row.created_at if message is None else max(row.created_at, message.occurred_at)
    found.append(Moment(accepted, "pending", "Accepted", f"for {row.consumer} in queue {row.queue}"))
    for run in detail.runs:
        good = run.outcome in ("succeeded", "deliver")
        error = f"{run.error_type}: {run.error}" if run.error_type else (run.error or "")
        found.append(
            Moment(
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
                Moment(
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
        found.append(Moment(entry.at, "audit", f"{entry.action.capitalize()} by {entry.actor}", entry.reason or ""))
    if row.status == "delivered" and row.completed_at is not None and not any(one.tone == "delivered" for one in found):
        found.append(Moment(row.completed_at, "delivered", "Delivered"))
    found.sort(key=lambda one: one.at)
    if row.dead and row.completed_at is not None:
        # The current state comes last, even if its attempt was recorded slightly later.
        found.append(Moment(row.completed_at, "failed", "Dead letter", "waiting to be replayed or discarded"))
    return found


async def messages(visit: Visit) -> Page:
    wanted = {name: visit.query[name] for name in ("type", "source", "key") if name in visit.query}
    before = read_id(visit.query["before"]) if "before" in visit.query else None
    found = await visit.ops.message_page(**wanted, limit=PAGE, before=before)
    return Page(
        "messages.html",
        {
            "rows": found.items,
            "next": visit.again(before=found.next) if found.next else None,
            "newest": visit.again(before=None) if before else None,
            "chosen": wanted,
            "now": await visit.ops.now(),
            "command": "holdfast messages list"
            + "".join(f" --{name} {shlex.quote(value)}" for name, value in wanted.items()),
        },
    )


async def message(visit: Visit) -> Page:
    found = await visit.ops.message(read_id(visit.request.path_params["id"]))
    return Page(
        "message.html", {"message": found.message, "deliveries": found.deliveries, "now": await visit.ops.now()}
    )


async def request(visit: Visit) -> Page:
    """Trace of one request: its messages, their deliveries with all attempts, and operator actions."""
    after = read_id(visit.query["after"]) if "after" in visit.query else None
    trail = await visit.ops.follow(visit.query.get("id", "").strip(), after=after)
    return Page(
        "request.html",
        {
            "trail": trail,
            "next": visit.again(after=trail.next) if trail.next else None,
            "first": visit.again(after=None) if after else None,
            "now": await visit.ops.now(),
        },
    )


async def find(visit: Visit) -> RedirectResponse:
    """Redirects to the delivery, message, plan or request with this ID, or to a text search."""
    wanted = visit.query.get("q", "").strip()
    try:
        id = UUID(wanted)
    except ValueError:
        return await _found_text(visit, wanted) if wanted else RedirectResponse(visit.url("/"), 303)
    for path, look in (
        ("/deliveries", visit.ops.delivery),
        ("/messages", visit.ops.message),
        ("/plans", visit.ops.plan),
    ):
        try:
            await look(id)
        except NotFound:
            continue
        return RedirectResponse(visit.url(f"{path}/{id}"), 303)
    # A request ID may also be a UUID.
    return await _found_text(visit, wanted)


async def _found_text(visit: Visit, text: str) -> RedirectResponse:
    path = visit.url("/requests", id=text) if await visit.ops.has_request(text) else visit.url("/search", q=text)
    return RedirectResponse(path, 303)


async def search(visit: Visit) -> Page:
    """Failure groups and deliveries that contain a text, and the request with this ID."""
    text = visit.query.get("q", "").strip()
    if not text:
        return Page("search.html", {"text": "", "found": None})
    found = await visit.ops.search(text, limit=PAGE, after=visit.query.get("after"))
    return Page(
        "search.html",
        {
            "text": text,
            "found": found,
            "reach": reach(found),
            "request_id": text if any(one.field == "request_id" for one in found.matches) else None,
            "next": visit.again(after=found.next) if found.next else None,
        },
    )
