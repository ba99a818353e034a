"""The pending, running and failed deliveries of each tenant, from samples of a bounded size."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.errors import Refused
from holdfast.core.events.pattern import ANY
from holdfast.core.flow import KeyRule, effective_flow, key_rule
from holdfast.core.message import TENANT_HEADER
from holdfast.core.redaction.mask import secret_name
from holdfast.core.redaction.redact import find_redaction
from holdfast.ops.queries.stats import Load, loads
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.messages.registry import Consumer, consumers
from holdfast.stores.queries.delivery_counts import counts
from holdfast.stores.queries.field_values import field_values
from holdfast.stores.queries.query import clock

BY_TENANT = f"header:{TENANT_HEADER}"
"""The header by which webhook endpoints know tenants too."""

_SAMPLE = 3_000
_LEAST = 20
_LANES = 100
_STATES = ("pending", "in_flight", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLoad:
    """The deliveries of one tenant for one consumer, or for all if `consumer` is None. Numbers are estimates unless the
    page is exact. `tenant` is None for deliveries without the field."""

    tenant: str | None
    consumer: str | None
    pending: int
    in_flight: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPage:
    """The tenants with the most dead and waiting deliveries, and the loads of each by consumer.

    `by` names the field that is the tenant, `choices` the fields that consumers use as keys. `sampled` of `total`
    deliveries were read; if not all, the numbers of each consumer's sample are scaled to its total.
    """

    by: str
    choices: tuple[str, ...]
    tenants: tuple[TenantLoad, ...]
    consumers: tuple[TenantLoad, ...]
    keyed: tuple[str, ...]
    sampled: int
    total: int
    now: datetime

    @property
    def is_exact(self) -> bool:
        return self.sampled >= self.total


def tenants(
    *, by: str = BY_TENANT, tenant: str | None = None, known_loads: Sequence[Load] | None = None
) -> TaskSteps[TenantPage]:
    """The deliveries that wait, run and failed, by tenant: a header such as `header:org_id`, or a payload path that a
    consumer uses as its key.

    Reads at most a few thousand deliveries, in a store of any size. With `tenant`, `tenants` and `consumers` have only this
    one. Pass `stats().loads` as `known_loads` to avoid counting again.
    """
    if known_loads is None:
        known_loads = loads((yield from transact(counts())))
    known = yield from transact(consumers())
    rules = {one.name: rule for one in known if (rule := _rule(one)) is not None}
    chosen = yield from _checked(by, rules.values())
    lanes = [(state, load, getattr(load, state)) for load in known_loads for state in _STATES if getattr(load, state)]
    lanes = sorted(lanes, key=lambda lane: -lane[2])[:_LANES]
    bound = max(_LEAST, _SAMPLE // max(1, len(lanes)))
    path = [chosen.name] if chosen.kind == "header" else chosen.name.split(".")
    keys = [(state, load.queue, load.consumer) for state, load, _ in lanes]
    found = yield from transact(field_values(path, keys, bound, is_header=chosen.kind == "header"))
    read: Counter[int] = Counter()
    for one in found:
        read[one.n] += one.size
    tally: dict[tuple[str | None, str], Counter[str]] = defaultdict(Counter)
    for one in found:
        state, load, size = lanes[one.n]
        share = max(1.0, size / read[one.n])
        tally[one.value or None, load.consumer][state] += round(one.size * share)
    rows = [_load(value, consumer, states) for (value, consumer), states in tally.items()]
    rows = [one for one in rows if tenant is None or (one.tenant or "") == tenant]
    return TenantPage(
        by=chosen.by,
        choices=tuple(dict.fromkeys((BY_TENANT, *(rule.by for rule in rules.values())))),
        tenants=tuple(_sum(rows)),
        consumers=tuple(sorted(rows, key=_order)),
        keyed=tuple(name for name, rule in rules.items() if rule.same(chosen)),
        sampled=sum(read.values()),
        total=sum(getattr(load, state) for load in known_loads for state in _STATES),
        now=(yield from transact(clock())),
    )


def _rule(one: Consumer) -> KeyRule | None:
    """The field that a consumer uses as its key."""
    rule = None if one.flow is None else effective_flow(one.flow, one.flow_override).key
    return rule if rule is not None and rule.kind in ("path", "header") else None


def _checked(by: str, rules: Iterable[KeyRule]) -> TaskSteps[KeyRule]:
    """The rule for a field that operators may see: any header, or a key of a consumer, unless it is secret."""
    rule = key_rule("tenants", by)
    if rule.kind == "path" and not any(rule.same(one) for one in rules):
        raise Refused(
            "count by",
            f"payload field {by}",
            "not the key of a consumer",
            "choose a key that a consumer declares, or a header such as header:tenant",
        )
    parts = rule.name.split(".") if rule.kind == "path" else [rule.name]
    declared = yield from transact(redactions())
    is_redacted = rule.kind == "path" and any(
        find_redaction(declared, ".".join(parts[:n]), [ANY]) is not None for n in range(1, len(parts) + 1)
    )
    if is_redacted or '"' in rule.name or any(secret_name(part) for part in parts):
        raise Refused("count by", by, "redacted", "choose a field that is not secret")
    return rule


def _load(tenant: str | None, consumer: str | None, states: Counter[str]) -> TenantLoad:
    return TenantLoad(
        tenant=tenant,
        consumer=consumer,
        pending=states["pending"],
        in_flight=states["in_flight"],
        failed=states["failed"],
    )


def _sum(rows: Iterable[TenantLoad]) -> list[TenantLoad]:
    """The loads of each tenant over all consumers."""
    sums: dict[str | None, Counter[str]] = defaultdict(Counter)
    for one in rows:
        sums[one.tenant].update(pending=one.pending, in_flight=one.in_flight, failed=one.failed)
    return sorted((_load(tenant, None, states) for tenant, states in sums.items()), key=_order)


def _order(one: TenantLoad) -> tuple[int, int, str]:
    return (-one.failed - one.pending, -one.in_flight, f"{one.tenant}{one.consumer}")
