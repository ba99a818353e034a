"""The JSON shape of what operators see: one for the command line, the HTTP API and agents alike.

Times are ISO 8601 in UTC, durations are seconds, a payload is the JSON it is. Shapes grow only by addition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from uuid import UUID

import orjson

from holdfast.core.bounded_count import is_or_more
from holdfast.core.delivery import FailureCycle
from holdfast.core.message import Message
from holdfast.core.retry import RetryPolicy
from holdfast.ops.consumers import ConsumerState
from holdfast.ops.deliveries import DeliveryDetail, Exported
from holdfast.ops.messages import MessageDetail
from holdfast.ops.plan_file import plan_to_json, skipped_to_json
from holdfast.ops.plans import REASONS, Plan, Skipped
from holdfast.ops.projectors import ProjectorState
from holdfast.ops.queues import Queue
from holdfast.ops.stats import Load, Stats
from holdfast.ops.trail import Followed
from holdfast.ops.webhooks import Webhook
from holdfast.stores.admin.plan import PlanItem, StoredPlan
from holdfast.stores.queries.query import FailureGroup, Listed

COUNTED = (Load, Stats, Queue, ConsumerState, ProjectorState, Webhook, FailureGroup, DeliveryDetail)
"""What holds counts: its shape says in `at_least` which of them are lower bounds."""
TOTALS = ("pending", "suspects", "in_flight", "failed", "discarded", "oldest")


def dumps(value: object, *, indent: bool = False) -> str:
    """`value` as JSON text."""
    return orjson.dumps(shape(value), option=orjson.OPT_INDENT_2 if indent else None).decode()


def shape(value: object) -> object:
    """`value` as JSON values."""
    match value:
        case None | str() | bool() | int() | float() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case Listed():
            return {**_delivery(value), "type": value.type, "source": value.source, "key": value.key}
        case Message():
            return {**_fields(value), "payload": orjson.Fragment(value.payload.encode())}
        case Exported():
            return {**_mapping(value.listed), "message": shape(value.message)}
        case DeliveryDetail():
            rest = {name: part for name, part in _fields(value).items() if name not in ("listed", "now")}
            return {**_mapping(value.listed), **rest, "at_least": _at_least(value, ("alike",))}
        case Followed():
            return {**_mapping(value.listed), "runs": shape(value.runs), "audit": shape(value.audit)}
        case MessageDetail():
            return {**_mapping(value.message), "deliveries": shape(value.deliveries)}
        case Plan():
            return plan_to_json(value)
        case Skipped():
            return skipped_to_json(value)
        case StoredPlan():
            return {**_fields(value), "left": value.left, "unsettled": value.unsettled}
        case PlanItem():
            return {**_mapping(value._asdict()), "reason": None if value.why is None else REASONS[value.why]}
        case Stats():
            totals = {name: shape(getattr(value, name)) for name in TOTALS}
            return {**_fields(value), **totals, "at_least": _at_least(value, TOTALS)}
        case FailureCycle() | RetryPolicy():
            return value.to_json()
        case Mapping():
            return {str(key): shape(item) for key, item in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return shape(value._asdict())
        case list() | tuple() | set() | frozenset():
            return [shape(item) for item in value]
        case _ if isinstance(value, COUNTED):
            return {**_fields(value), "at_least": _at_least(value, [spec.name for spec in fields(value)])}
        case _ if is_dataclass(value):
            return _fields(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON shape")


def _mapping(value: object) -> dict[str, object]:
    shaped = shape(value)
    assert isinstance(shaped, dict)
    return shaped


def _fields(value: object) -> dict[str, object]:
    assert is_dataclass(value)
    return {spec.name: shape(getattr(value, spec.name)) for spec in fields(value)}


def _at_least(value: object, names: Iterable[str]) -> list[str]:
    return [name for name in names if is_or_more(getattr(value, name))]


def _delivery(listed: Listed) -> dict[str, object]:
    return _fields(listed.delivery)
