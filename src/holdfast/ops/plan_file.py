"""A plan as JSON: kept in a file between the preview and the execution, or shown to a script."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from holdfast.core.bounded_count import BoundedCount
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError
from holdfast.ops.plans import OpenCircuit, Plan, Planned, Skipped
from holdfast.ops.work import Work, ask
from holdfast.stores.admin.bulk_actions import Action, SkipReason
from holdfast.stores.queries.query import Filter

VERSION = 1
_GROUPS = 100

T = TypeVar("T")


def plan_to_json(plan: Plan) -> dict[str, object]:
    """Everything a plan holds, as JSON values; `load_plan` reads it back."""
    return {
        "version": VERSION,
        "id": str(plan.id),
        "action": plan.action.value,
        "made_at": plan.made_at.isoformat(),
        "filter": filter_to_json(plan.filter),
        "limit": plan.limit,
        "rerun": plan.rerun,
        **counted(plan),
        "items": [{**asdict(item), "id": str(item.id), "status": item.status.value} for item in plan.items],
        "skipped": [skipped_to_json(one) for one in plan.skipped],
    }


def counted(plan: Plan) -> dict[str, object]:
    """What a preview says of a plan, as JSON values: how many of what, and what stands in the way."""
    return {
        "more": plan.more,
        "remaining": int(plan.remaining),
        "remaining_at_least": plan.remaining.or_more,
        "consumers": plan.consumers,
        "types": plan.types,
        "groups": dict(list(plan.groups.items())[:_GROUPS]),
        "generations": {str(generation): count for generation, count in plan.generations.items()},
        "unserved": list(plan.unserved),
        "handled": plan.handled,
        "deduplicated": plan.deduplicated,
        "circuits": [
            {"name": one.name, "until": None if one.until is None else one.until.isoformat(), "consumer": one.consumer}
            for one in plan.circuits
        ],
    }


def skipped_to_json(one: Skipped) -> dict[str, object]:
    return {"id": str(one.id), "consumer": one.consumer, "why": one.why.value, "by": one.by, "reason": one.reason}


def filter_to_json(wanted: Filter) -> dict[str, object]:
    """What a filter asks for; what it leaves open is left out."""
    stored: dict[str, object] = {}
    for spec in fields(wanted):
        value = getattr(wanted, spec.name)
        if value is None or value is False or value == ():
            continue
        stored[spec.name] = _plain(value)
    return stored


def filter_from_json(stored: Mapping[str, Any]) -> Filter:
    given: dict[str, Any] = dict(stored)
    readers: dict[str, Callable[[Any], object]] = {
        "ids": lambda ids: tuple(UUID(id) for id in ids),
        "statuses": lambda names: tuple(Status(name) for name in names),
        "consumers": tuple,
        "message_id": UUID,
        "since": datetime.fromisoformat,
        "until": datetime.fromisoformat,
    }
    for name, read in readers.items():
        if name in given:
            given[name] = read(given[name])
    return Filter(**given)


def load_plan(stored: object) -> Work[Plan]:
    """A plan as `plan_to_json` wrote it, ready to be executed on this store; a broken one is refused whole."""
    store = yield from ask(lambda store: store)
    if not isinstance(stored, Mapping) or stored.get("version") != VERSION:
        raise ConfigurationError(f"this is no plan of version {VERSION}; make one with --dry-run --plan FILE")
    try:
        return Plan(
            id=UUID(stored["id"]),
            action=Action(stored["action"]),
            made_at=datetime.fromisoformat(stored["made_at"]),
            filter=filter_from_json(stored["filter"]),
            limit=int(stored["limit"]),
            rerun=bool(stored["rerun"]),
            remaining=BoundedCount(
                int(stored.get("remaining", stored["more"])), bool(stored.get("remaining_at_least"))
            ),
            items=tuple(_item(one) for one in stored["items"]),
            skipped=tuple(_skipped(one) for one in stored["skipped"]),
            unserved=tuple(stored["unserved"]),
            handled=int(stored.get("handled", 0)),
            deduplicated=int(stored.get("deduplicated", 0)),
            circuits=tuple(_circuit(one) for one in stored.get("circuits", ())),
            store=store,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"this plan cannot be read ({type(error).__name__}: {error}); make it anew") from None


def _item(stored: Mapping[str, Any]) -> Planned:
    return Planned(**{**stored, "id": UUID(stored["id"]), "status": Status(stored["status"])})


def _skipped(stored: Mapping[str, Any]) -> Skipped:
    return Skipped(id=UUID(stored["id"]), consumer=stored["consumer"], why=SkipReason(stored["why"]), by=stored["by"])


def _circuit(stored: Mapping[str, Any]) -> OpenCircuit:
    until = stored["until"]
    return OpenCircuit(
        name=stored["name"],
        until=None if until is None else datetime.fromisoformat(until),
        consumer=stored["consumer"],
    )


def _plain(value: object) -> object:
    match value:
        case tuple():
            return [_plain(item) for item in value]
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case Status():
            return value.value
        case _:
            return value
