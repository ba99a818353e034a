"""Chooses the index from which the deliveries of a filter are read in the order of their ids.

Failed deliveries have four indexes: by group, by consumer, by type and by error type. Of those that serve the filter,
the one with the fewest entries is read. A prefix of types, or the short name of an error, matches several values of an
index: the filter is then split into one part for each value that occurs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Query, Steps
from holdfast.stores.queries.query import Filter, conditions

_FEW = 2_000
"""An index with fewer entries for a filter is read without a comparison with the others."""
_PARTS = 20
_VALUES = 200
_FAILED = Filter(statuses=(Status.FAILED,))
_SUBQUERIES = {
    "where_type": "where_type_looked_up",
    "where_type_below": "where_type_below_looked_up",
    "where_consumers": "where_consumers_looked_up",
}


class FilterPart(NamedTuple):
    """A part of a filter, and the conditions of it that an index in the order of ids serves."""

    wanted: Filter
    base: Filter


def index_parts(wanted: Filter) -> Steps[list[FilterPart]]:
    """The parts of the filter: together they match the same deliveries, each once. Several only for failed deliveries."""
    if wanted.ids is not None or wanted.message_id is not None:
        return [FilterPart(wanted, wanted)]
    if not wanted.only_failed:
        return [FilterPart(wanted, Filter())]
    choices = yield from _choices(wanted)
    if not choices:
        return [FilterPart(wanted, _FAILED)]
    for parts in choices if len(choices) > 1 else ():
        large = False
        for part in parts:
            large = large or (yield from range_end(part.base, None, _FEW)) is not None
        if not large:
            return parts
    return choices[0]


def _choices(wanted: Filter) -> Steps[list[list[FilterPart]]]:
    """The indexes that serve the filter, each with the parts that it reads."""
    found = []
    if wanted.dead and wanted.group is not None:
        found.append([FilterPart(wanted, Filter(dead=True, group=wanted.group))])
    if wanted.dead and wanted.consumers:
        parts = [replace(wanted, consumers=(name,)) for name in dict.fromkeys(wanted.consumers)]
        found.append([FilterPart(part, Filter(dead=True, consumers=part.consumers)) for part in parts])
    if wanted.type is not None and not (yield Query("untyped_failures")):
        types: list[str] | None = [wanted.type]
        if wanted.type.endswith(".*"):
            prefix = wanted.type[:-1]
            types = yield from _values("failed_types", lambda value: value.startswith(prefix))
        if types is not None:
            found.append([FilterPart(replace(wanted, type=one), replace(_FAILED, type=one)) for one in types])
    if wanted.error_type is not None:
        name = wanted.error_type.removeprefix("builtins.")
        errors = yield from _values("failed_error_types", lambda value: value == name or value.endswith(f".{name}"))
        if errors is not None:
            parts = [replace(wanted, error_type=one) for one in errors]
            found.append([FilterPart(part, replace(_FAILED, error_type=part.error_type)) for part in parts])
    return [parts for parts in found if len(parts) <= _PARTS]


def _values(name: str, matches: Callable[[str], bool]) -> Steps[list[str] | None]:
    """The values of an index that match; None if it has too many."""
    values = [str(value) for (value,) in (yield Query(name, limit=_VALUES + 1))]
    return None if len(values) > _VALUES else [value for value in values if matches(value)]


def range_end(base: Filter, before: UUID | None, size: int) -> Steps[UUID | None]:
    """The last of the `size` newest deliveries of `base` below `before`; None if there are fewer."""
    where, values = indexed_conditions(base, base)
    return (yield from far_id("far_delivery", where, values, "where_before", before, size))


def far_id(
    name: str, where: tuple[str, ...], values: Mapping[str, object], below: str, before: UUID | None, size: int
) -> Steps[UUID | None]:
    """The last id of the range that begins below `before`; None if the range contains all remaining rows."""
    if before is not None:
        where, values = (*where, below), {**values, "before": before}
    rows = yield Query(name, values, slots=(("where", where),), limit=size - 1)
    return as_uuid(rows[0][0]) if rows else None


def indexed_conditions(wanted: Filter, base: Filter) -> tuple[tuple[str, ...], dict[str, object]]:
    """The conditions of a filter, in the form that lets the index of `base` be used."""
    where, values = conditions(wanted)
    if wanted.ids is not None:
        return where, values
    # Subqueries per delivery: otherwise the planner may scan the whole table for a rare value.
    forms = dict(_SUBQUERIES)
    if base.type is not None:
        forms["where_failed_type"] = "where_failed_type_indexed"
    if base.error_type is not None:
        forms["where_error_type"] = "where_error_type_indexed"
    if base == _FAILED and wanted != base:
        # PostgreSQL would read all deliveries of the range (500 ms for 100,000 dead letters among a million). This condition
        # has a subquery that is never evaluated, but whose cost counts for each row, so the index of failed ones wins.
        where = (*where, "where_only_failed")
    return tuple(forms.get(name, name) for name in where), values
