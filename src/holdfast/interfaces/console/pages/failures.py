"""Pages that explain failures: groups of dead letters, their inputs, two payloads side by side, and the live tail."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.delivery import Status
from holdfast.interfaces.console.pages.chart import Chart, TimeAxis, failures, time_axis
from holdfast.interfaces.console.pages.chart_range import iso
from holdfast.interfaces.console.pages.name_list import contains, name_list
from holdfast.interfaces.console.pages.overview import (
    FailureGroupCard,
    failure_group_cards,
    failure_groups,
    is_truncated,
)
from holdfast.interfaces.console.request import ConsoleRequest, HtmlPage
from holdfast.interfaces.presentation.deliveries import state
from holdfast.interfaces.presentation.filters import (
    STATES,
    as_cli_options,
    parse_choice,
    parse_filter,
    parse_id,
    parse_range,
)
from holdfast.interfaces.presentation.payloads import InputField, compare, input_fields
from holdfast.ops.queries.activity import changed_at
from holdfast.ops.queries.deliveries import DeliveryDetail
from holdfast.stores.admin.plan import Action, StoredPlan
from holdfast.stores.queries.query import Filter

_SAMPLES = 20
_CHARTED = 200_000
"""The largest group whose failures are counted by time."""
_PLANS = 50
_REPLAYS = 3
_GROUPS = 20
_MAX_INPUTS = 12
_TAIL = timedelta(seconds=30)
_TAIL_ROWS = 100
_TAIL_READS = 4


async def groups(request: ConsoleRequest) -> HtmlPage:
    now = await request.ops.now()
    workers = await request.cache.read("workers", lambda ops: ops.workers())
    found = await failure_groups(request)
    times = parse_range(request.chosen("since", "until"), now)
    filters: dict[str, Callable[[FailureGroupCard, str], bool]] = {
        "consumer": lambda one, text: one.group.consumer == text,
        "error": contains(
            lambda one: one.group.error_type,
            lambda one: one.group.last_error,
            lambda one: one.group.frame,
            lambda one: one.group.fingerprint,
        ),
        "since": lambda one, _: one.group.last_failed_at is None or one.group.last_failed_at >= times["since"],
        "until": lambda one, _: one.group.first_failed_at is None or one.group.first_failed_at < times["until"],
    }
    cards = failure_group_cards(found, workers, now)
    page = name_list(request, cards, lambda one: f"{one.group.fingerprint}.{one.group.consumer}", filters, size=_GROUPS)
    return HtmlPage("groups.html", {**page, "now": now, "full": is_truncated(found)})


async def group_card(request: ConsoleRequest, fingerprint: str, consumer: str | None) -> FailureGroupCard | None:
    """The group with this fingerprint; None if it is not one of the largest groups."""
    for one in await failure_groups(request):
        if one.fingerprint == fingerprint and consumer in (None, one.consumer):
            workers = await request.cache.read("workers", lambda ops: ops.workers())
            return failure_group_cards([one], workers, await request.ops.now())[0]
    return None


@dataclass(frozen=True, slots=True)
class FailureGroupDetail:
    """What the page of a failure group shows in addition to its card: when its dead letters failed, the inputs, and the
    replays of it so far."""

    chart: Chart | None
    axis: TimeAxis | None
    deploy: str | None
    inputs: list[InputField]
    plans: list[StoredPlan]


async def group_detail(request: ConsoleRequest, card: FailureGroupCard, now: datetime) -> FailureGroupDetail:
    group, begin = card.group, card.group.first_failed_at
    chart = axis = deploy = None
    if group.fingerprint is not None and begin is not None and begin < now and group.count <= _CHARTED:
        marked = None
        if card.after is not None:
            deploy = f"a worker of generation {card.deployed} started"
            marked = (begin - card.after, deploy)
        slots = await request.ops.group_trend(
            group.consumer, group.fingerprint, since=begin if marked is None else marked[0], until=now
        )
        axis = time_axis(slots, now)
        chart = failures(slots, lambda slot: request.with_query(since=iso(slot.at), until=iso(slot.until)), marked)
    newest = await request.ops.plans(limit=_PLANS)
    return FailureGroupDetail(
        chart=chart,
        axis=axis,
        deploy=deploy,
        inputs=await group_inputs(request, card),
        plans=[
            one
            for one in newest
            if one.action is Action.REPLAY
            and one.started_at is not None
            and group.fingerprint is not None
            and one.preview.filter.get("group") == group.fingerprint
        ][:_REPLAYS],
    )


async def group_inputs(request: ConsoleRequest, card: FailureGroupCard) -> list[InputField]:
    """The fields of the newest failed messages of a group, compared with those that its consumer delivered."""
    group = card.group
    failed = await request.ops.samples(Filter(dead=True, group=group.fingerprint, consumers=(group.consumer,)))
    types = {one.listed.type for one in failed}
    delivered = await request.ops.samples(Filter(statuses=(Status.DELIVERED,), consumers=(group.consumer,)))
    return input_fields(
        [one.message.payload for one in failed if one.message is not None],
        [one.message.payload for one in delivered if one.message is not None and one.listed.type in types],
    )[:_MAX_INPUTS]


async def comparison(request: ConsoleRequest) -> HtmlPage:
    """The payloads of two deliveries by field. Without `right`: the newest delivered one of the same consumer."""
    if "left" not in request.query:
        return HtmlPage("compare.html", {"left": None, "right": None, "pairs": [], "id": ""})
    left = await request.ops.delivery(parse_id(request.query["left"]))
    right = await _other(request, left)
    pairs = [] if right is None else compare(_payload(left), _payload(right))
    return HtmlPage(
        "compare.html", {"left": left, "right": right, "pairs": pairs, "id": request.query.get("right", "")}
    )


async def _other(request: ConsoleRequest, left: DeliveryDetail) -> DeliveryDetail | None:
    if "right" in request.query:
        return await request.ops.delivery(parse_id(request.query["right"]))
    row = left.listed.delivery
    wanted = Filter(statuses=(Status.DELIVERED,), consumers=(row.consumer,), type=left.listed.type)
    others = [one.listed.delivery.id for one in await request.ops.samples(wanted, limit=2)]
    other = next((id for id in others if id != row.id), None)
    return None if other is None else await request.ops.delivery(other)


def _payload(detail: DeliveryDetail) -> str:
    return "{}" if detail.message is None else detail.message.payload


async def tail(request: ConsoleRequest) -> HtmlPage:
    """The deliveries that were created or changed in the last seconds, newest change first."""
    chosen = request.chosen("status", "consumer", "queue", "type")
    if "status" in chosen:
        parse_choice(chosen["status"], STATES, "state")
    now = await request.ops.now()
    wanted = parse_filter({name: value for name, value in chosen.items() if name != "status"}, now)
    found = await request.ops.activity(wanted, since=now - _TAIL)
    changed = {one.delivery.id: one for one in found.changed}
    for _ in range(_TAIL_READS):
        if not found.more:
            break
        found = await request.ops.activity(wanted, cursor=found.cursor)
        changed |= {one.delivery.id: one for one in found.changed}
    rows = [one for one in changed.values() if chosen.get("status") in (None, state(one))]
    rows.sort(key=lambda one: changed_at(one, found.now), reverse=True)
    return HtmlPage(
        "tail.html",
        {
            "rows": rows[:_TAIL_ROWS],
            "is_cut": len(rows) > _TAIL_ROWS or found.more,
            "chosen": chosen,
            "states": STATES,
            "seconds": int(_TAIL.total_seconds()),
            "changed_at": changed_at,
            "now": found.now,
            "command": f"holdfast tail{as_cli_options(chosen)}",
        },
    )
