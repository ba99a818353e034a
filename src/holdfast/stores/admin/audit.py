"""Audit queries with filters; each plan has one row, not one per delivery."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import orjson

from holdfast.stores.admin.actions import LAST_ENTRY, AuditedPlan, AuditEntry, read_entry
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps, operation

_FILTERS = ("actor", "action", "kind", "target", "since", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """A filter for audit entries. All given conditions apply; a target needs its kind."""

    actor: str | None = None
    action: str | None = None
    kind: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@operation(reads=True)
def audit_page(wanted: AuditFilter, limit: int = 50, before: int | None = None) -> Steps[list[AuditEntry]]:
    """The newest matching entries. A plan is listed once, with its newest matching entry and its progress; its actions
    on single deliveries are found with the delivery or the plan as the target."""
    given = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    values = {"before": LAST_ENTRY if before is None else before, **given}
    where = tuple(f"where_audit_{name}" for name in given)
    same: tuple[str, ...] = ()
    if wanted.target is None:
        where, same = (*where, "where_audit_listed"), tuple(f"where_audit_same_{name}" for name in given)
    rows = yield Query("audit", values, slots=(("where", where), ("same", same)), limit=limit)
    entries = [read_entry(row) for row in rows]
    plans = yield from _plans([UUID(one.target) for one in entries if one.kind == "plan"])
    return [replace(one, plan=plans.get(one.target)) if one.kind == "plan" else one for one in entries]


def _plans(ids: Sequence[UUID]) -> Steps[dict[str, AuditedPlan]]:
    if not ids:
        return {}
    rows = yield Query("audited_plans", {"ids": [str(id) for id in dict.fromkeys(ids)]})
    return {
        str(as_uuid(id)): AuditedPlan(
            action,
            state,
            total,
            done,
            {} if results is None else orjson.loads(results),
        )
        for id, action, state, total, done, results in rows
    }
