"""JSON views of what operators see. One set serves the CLI, the HTTP API and MCP, and describes the OpenAPI schemas.

A view of a dataclass or named tuple has its fields; `VIEWS` lists the types that differ. Times are ISO 8601 in UTC,
durations are seconds, a payload is its JSON. Later releases add properties and remove none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

import orjson

from holdfast.core.message import Message
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.bounded_count import is_or_more
from holdfast.interfaces.presentation.pending_count import QueuePending
from holdfast.ops.queries.deliveries import DeliveryDetail, Exported
from holdfast.ops.queries.flow_keys import KeyPage, KeyState
from holdfast.ops.queries.messages import MessageDetail
from holdfast.ops.queries.request_trace import TracedDelivery
from holdfast.ops.queries.stats import Load, Stats
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.ops.resources.consumers import ConsumerState
from holdfast.ops.resources.job_groups import GroupDetail
from holdfast.ops.resources.projectors import ProjectorState
from holdfast.ops.resources.queues import QueueState
from holdfast.ops.resources.webhooks import Webhook
from holdfast.stores.admin.plan import PlanItem, StoredPlan
from holdfast.stores.deliveries.result import StoredResult
from holdfast.stores.groups.query import StageCounts
from holdfast.stores.integrations.idempotency import KeyRecord
from holdfast.stores.queries.query import DeliverySummary, FailureGroup
from holdfast.stores.workflows.query import RememberedRow, SignalRecord, StepRecord
from holdfast.stores.workflows.run_page import COUNTED_STATES, ListedRun, WorkflowCounts


class Property(NamedTuple):
    """One property of a view: its name, its type, and how it is read from the value."""

    name: str
    type: Any
    read: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How the JSON of a type differs from its fields.

    The properties of the field `flatten` become properties of the view. `computed` properties are added or replace
    fields. `counts` are properties that may be lower bounds; `at_least` lists those that are.
    """

    flatten: str = ""
    omit: tuple[str, ...] = ()
    computed: Mapping[str, tuple[Any, Callable[[Any], object]]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()


def _counted(kind: type) -> View:
    return View(counts=tuple(_field_names(kind)))


def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(spec.name for spec in fields(kind)) if is_dataclass(kind) else kind._fields


def _json(name: str) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """A property whose field is JSON text."""

    def read(one: Any) -> object:
        text = getattr(one, name)
        return None if text is None else orjson.Fragment(text.encode())

    return {name: (Any, read)}


_TOTALS = ("pending", "suspects", "in_flight", "failed", "discarded", "oldest")

VIEWS: Mapping[type, View] = {
    DeliverySummary: View(flatten="delivery"),
    Exported: View(flatten="listed"),
    TracedDelivery: View(flatten="listed"),
    DeliveryDetail: View(flatten="listed", omit=("now",), counts=("alike", "holds_up")),
    KeyPage: View(omit=("now",), counts=("running",)),
    KeyState: View(counts=("waiting", "due", "running")),
    QueuePending: View(counts=("pending",)),
    KeyRecord: View(omit=("owner",)),
    Message: View(computed=_json("payload")),
    MessageDetail: View(flatten="message"),
    ListedRun: View(flatten="run", computed={"state": (str, attrgetter("state"))}),
    WorkflowRunDetail: View(flatten="listed", omit=("now",), computed=_json("payload")),
    GroupDetail: View(flatten="progress", omit=("now",)),
    StageCounts: View(computed={"left": (int, attrgetter("left"))}),
    StoredResult: View(computed=_json("result")),
    StepRecord: View(computed=_json("result")),
    RememberedRow: View(computed=_json("result")),
    SignalRecord: View(computed=_json("payload")),
    WorkflowCounts: View(counts=COUNTED_STATES),
    StoredPlan: View(computed={name: (int, attrgetter(name)) for name in ("left", "unsettled")}),
    PlanItem: View(computed={"reason": (str | None, attrgetter("reason"))}),
    Stats: View(computed={name: (float, attrgetter(name)) for name in _TOTALS}, counts=_TOTALS),
    **{kind: _counted(kind) for kind in (Load, QueueState, ConsumerState, ProjectorState, Webhook, FailureGroup)},
}


@cache
def properties(kind: Any) -> tuple[Property, ...]:
    """The JSON properties of a dataclass or named tuple. A subclass is shown as its base class is."""
    kind = next((base for base in kind.__mro__ if base in VIEWS), kind)
    view, hints = VIEWS.get(kind, View()), get_type_hints(kind)
    found: dict[str, Property] = {}
    for name in _field_names(kind):
        if name == view.flatten:
            inner = attrgetter(name)
            found |= {one.name: one._replace(read=_nested(inner, one.read)) for one in properties(hints[name])}
        elif name not in view.omit:
            found[name] = Property(name, hints[name], attrgetter(name))
    found |= {name: Property(name, type, read) for name, (type, read) in view.computed.items()}
    if view.counts:
        found["at_least"] = Property("at_least", tuple[str, ...], lambda one: _lower_bounds(one, view.counts))
    return tuple(found.values())


def _nested(outer: Callable[[Any], Any], inner: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda one: inner(outer(one))


def _lower_bounds(value: object, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if is_or_more(getattr(value, name))]


def dumps(value: object, *, indent: bool = False) -> str:
    """The view of `value` as JSON text."""
    return orjson.dumps(view(value), option=orjson.OPT_INDENT_2 if indent else None).decode()


def view(value: object) -> object:
    """The view of `value` as JSON values."""
    match value:
        case Enum():
            return value.value
        case None | str() | bool() | int() | float() | orjson.Fragment():
            return value
        case UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case RetryPolicy():
            return value.to_json()
        case Mapping():
            return {str(key): view(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if not hasattr(value, "_fields"):
            return [view(item) for item in value]
        case _ if is_dataclass(value) or hasattr(value, "_fields"):
            kind: Any = type(value)
            return {one.name: view(one.read(value)) for one in properties(kind)}
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON view")
