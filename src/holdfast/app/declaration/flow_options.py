"""The flow options of a handler (`limit`, `rate`, `order_by`, ...), checked when the handler is declared."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from holdfast.core.errors import ConfigurationError
from holdfast.core.flow import ALL, FlowSettings, KeyRule, check_limit, check_rate, key_rule, positive
from holdfast.core.redaction.mask import secret_name
from holdfast.core.redaction.redact import Redaction, find_redaction
from holdfast.engine.handlers.handler import Handler

ON_DEAD = ("block", "skip")
FLOW_OPTIONS = (
    "limit",
    "rate",
    "order_by",
    "on_dead",
    "fair_by",
    "by",
    "debounce",
    "max_wait",
)


def flow_settings(options: Mapping[str, Any]) -> FlowSettings | None:
    """The settings that these options declare; None without any. Raises `ConfigurationError` for those that cannot work."""
    given = {name: options[name] for name in FLOW_OPTIONS if options.get(name) is not None}
    if not given:
        return None
    if options.get("batch") is not None:
        _alone("batch", given)
    limit, rate = check_limit("", given.get("limit")), check_rate("", given.get("rate"))
    order = _order(given)
    settings = FlowSettings(
        key=_one_key(given) or (ALL if "debounce" in given else None),
        limit=None if limit is None else limit.max,
        limit_by_key=limit is not None and limit.by is not None,
        rate_count=None if rate is None else rate.count,
        rate_window=None if rate is None else rate.window,
        rate_by_key=rate is not None and rate.by is not None,
        order=order,
        fair="fair_by" in given,
        debounce=positive("debounce", given.get("debounce")),
        max_wait=positive("max_wait", given.get("max_wait")),
    )
    _check_combination(settings, given)
    return settings


def check_key_field(name: str, flow: FlowSettings | None, known: Collection[str] | None) -> None:
    """Rejects a key that names no field of the payload: all deliveries would share the key ''. None: fields are unknown."""
    rule = None if flow is None else flow.key
    if rule is None or rule.kind != "path" or known is None:
        return
    if (first := rule.name.partition(".")[0]) not in known:
        near = difflib.get_close_matches(first, known, n=1)
        hint = f"did you mean {near[0]!r}? It has" if near else "it has"
        has = ", ".join(sorted(known)) or "no fields"
        raise ConfigurationError(f"{name}: by={rule.name!r} is not a field of the payload; {hint} {has}")


def check_key_is_public(handler: Handler, declared: frozenset[Redaction]) -> None:
    """Rejects a key that is a secret: keys are stored as text, and operators see them."""
    rule = None if handler.flow is None else handler.flow.key
    if rule is None:
        return
    types = handler.patterns or (f"job.{handler.name}",)
    if handler.event is not None:
        types, declared = (*types, handler.event.name), declared.union(handler.event.redact)
    if rule.kind == "header" and secret_name(rule.name):
        reason = "a secret header"
    elif rule.kind == "path" and (found := find_redaction(declared, rule.name, types)) is not None:
        reason = f"redacted by {found.path!r}"
    else:
        return
    raise ConfigurationError(
        f"{handler.kind} {handler.name}: by {rule.by!r} is {reason}, but operators can see keys; use a field that is not secret, "
        "or a function that returns a hash of it"
    )


def event_fields(cls: type | None) -> Collection[str] | None:
    """The fields of an event class as they are stored; None if they cannot be determined."""
    # A pydantic class may store its fields under aliases.
    if cls is None or not is_dataclass(cls) or hasattr(cls, "__pydantic_fields__"):
        return None
    return [field.name for field in fields(cls)]


def _one_key(given: Mapping[str, Any]) -> KeyRule | None:
    """The key that all options share; a consumer has one."""
    named = {
        "limit": getattr(given.get("limit"), "by", None),
        "rate": getattr(given.get("rate"), "by", None),
        "order_by": given.get("order_by"),
        "fair_by": given.get("fair_by"),
        "by": given.get("by"),
    }
    rules = {option: key_rule(option, by) for option, by in named.items() if by is not None}
    if not rules:
        return None
    (first, rule), *others = rules.items()
    for option, other in others:
        if not rule.same(other):
            raise ConfigurationError(
                f"{first} uses the key {rule.name!r} and {option} the key {other.name!r}; a consumer has one key. Give both "
                "the same key, or split the work into two consumers"
            )
    return rule


def _order(given: Mapping[str, Any]) -> str | None:
    on_dead = given.get("on_dead")
    if on_dead is not None and on_dead not in ON_DEAD:
        near = difflib.get_close_matches(str(on_dead), ON_DEAD, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigurationError(
            f"on_dead is {on_dead!r}; {hint}use 'block' (a dead letter stops its key) or 'skip' (the key continues)"
        )
    if "order_by" not in given:
        if on_dead is not None:
            raise ConfigurationError("on_dead= says what a dead letter does to its key; give order_by= as well")
        return None
    return on_dead or "block"


def _check_combination(settings: FlowSettings, given: Mapping[str, Any]) -> None:
    if settings.order is not None and settings.limit_by_key:
        raise ConfigurationError(
            "order_by= already runs one delivery of a key at a time; leave by= out of the limit, or leave order_by= out"
        )
    if settings.order is not None and settings.fair:
        raise ConfigurationError(
            "order_by= and fair_by= cannot be combined: order_by= already gives each key its turn; leave fair_by= out"
        )
    if "by" in given and settings.debounce is None:
        raise ConfigurationError("by= is an option of debounce=; write the key of a limit as Limit(2, by='tenant_id')")
    if settings.max_wait is not None and settings.debounce is None:
        raise ConfigurationError("max_wait= bounds debounce=; give debounce= as well")
    if settings.debounce is not None:
        if settings.max_wait is not None and settings.max_wait < settings.debounce:
            raise ConfigurationError("max_wait= is shorter than debounce=; give a longer max_wait=")
        _alone(
            "debounce",
            {
                "order_by": settings.order,
                "fair_by": settings.fair,
                "limit": settings.limit,
                "rate": settings.rate_count,
            },
        )


def _alone(option: str, others: Mapping[str, object]) -> None:
    for other, value in others.items():
        if value:
            raise ConfigurationError(f"{option}= and {other}= cannot be combined on one handler; leave one of them out")
