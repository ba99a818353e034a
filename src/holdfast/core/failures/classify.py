"""Classification: every exception becomes exactly one verdict.

Order: the `classify` functions of the rules (handler, then app), then their lists, then the built-in rules. Within one
set of lists the class nearest in the exception's MRO wins. A list with a wider class such as `Exception` never
overrides a signal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.core.errors import ConfigurationError, Signal
from holdfast.core.failures.builtin_rules import builtin_verdict
from holdfast.core.failures.exception_groups import leaves
from holdfast.core.failures.exception_info import carried_name, carried_wait
from holdfast.core.failures.verdict import Verdict, VerdictKind
from holdfast.core.values.text import safe_repr, safe_str, type_name

__all__ = ["Classifier", "Rules", "Verdict", "VerdictKind", "classify"]

Classifier = Callable[[BaseException], Verdict | None]
_Classes = tuple[type[BaseException], ...]

_LEAVES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The classification rules of a handler or of the app; a class may be in one list only."""

    dead_on: _Classes = ()
    retry_on: _Classes = ()
    block_on: _Classes = ()
    park_on: _Classes = ()
    classify: Classifier | None = None
    owner: str = "the app"
    """The owner of the rules, for error messages."""
    _kinds: dict[type[BaseException], VerdictKind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds: dict[type[BaseException], VerdictKind] = {}
        for kind in (VerdictKind.DEAD, VerdictKind.RETRY, VerdictKind.BLOCK, VerdictKind.PARK):
            listed: object = getattr(self, f"{kind}_on")
            if not isinstance(listed, tuple):
                raise ConfigurationError(f"{kind}_on is {listed!r}; give a tuple of exception classes")
            for cls in listed:
                if not (isinstance(cls, type) and issubclass(cls, BaseException)):
                    raise ConfigurationError(f"{kind}_on contains {cls!r}, which is not an exception class")
                if kinds.setdefault(cls, kind) is not kind:
                    first = kinds[cls]
                    raise ConfigurationError(f"{type_name(cls)} is in both {first}_on and {kind}_on; choose one")
        if self.classify is not None and (not callable(self.classify) or inspect.iscoroutinefunction(self.classify)):
            raise ConfigurationError(f"classify is {self.classify!r}; give a plain function that takes one exception")
        object.__setattr__(self, "_kinds", kinds)

    def kind_of(self, exc: BaseException) -> VerdictKind | None:
        """Return the verdict of the lists on `exc`, by the nearest class; None if no class matches."""
        stop = _narrowest_base(exc)
        for cls in type(exc).__mro__:
            if cls in self._kinds and issubclass(cls, stop):
                return self._kinds[cls]
        return None


def classify(exc: BaseException, *rules: Rules, now: datetime | None = None) -> Verdict:
    """Return the verdict on `exc`, the handler's rules first; never fails because of `exc`.

    A `classify` that returns neither a verdict nor None raises `ConfigurationError` from `exc`. `now` is only used for a
    Retry-After date without the Date header of the response.
    """
    asked = _asked(exc, rules)
    if asked is not None:
        return asked
    for rule in rules:
        kind = rule.kind_of(exc)
        if kind is not None:
            return _listed(kind, exc, now)
    if isinstance(exc, BaseExceptionGroup):
        return _combined([classify(leaf, *rules, now=now) for leaf in leaves(exc, _LEAVES)])
    return builtin_verdict(exc, now)


def _asked(exc: BaseException, rules: tuple[Rules, ...]) -> Verdict | None:
    for rule in rules:
        if rule.classify is None:
            continue
        try:
            verdict: object = rule.classify(exc)
        except Exception as broken:  # noqa: BLE001
            # The failure must still be recorded; the note appears in its trace.
            exc.add_note(f"classify raised {type_name(type(broken))}: {safe_str(broken)[:500]}; it was ignored")
            continue
        if isinstance(verdict, Verdict):
            return verdict
        if verdict is not None:
            raise _unknown(rule, verdict) from exc
    return None


def _unknown(rule: Rules, verdict: object) -> ConfigurationError:
    if inspect.iscoroutine(verdict):
        verdict.close()
    return ConfigurationError(
        f"classify of {rule.owner} returned {safe_repr(verdict)[:200]}; return Verdict.retry(), Verdict.dead(), "
        "Verdict.block(resource), Verdict.park(resource), or None for the rules that follow"
    )


def _narrowest_base(exc: BaseException) -> type[BaseException]:
    """Only this class and its subclasses can match `exc` in a list: `Exception` does not match signals and groups."""
    if isinstance(exc, Signal):
        return Signal
    return BaseExceptionGroup if isinstance(exc, BaseExceptionGroup) else BaseException


def _listed(kind: VerdictKind, exc: BaseException, now: datetime | None) -> Verdict:
    if kind is VerdictKind.DEAD:
        return Verdict.dead()
    if kind is VerdictKind.RETRY:
        wait = carried_wait(exc, now)
        return Verdict.retry(wait if isinstance(wait, timedelta) else None)
    if kind is VerdictKind.BLOCK:
        return Verdict.block(carried_name(exc))
    return Verdict.park(carried_name(exc), carried_wait(exc, now))


def _combined(verdicts: list[Verdict]) -> Verdict:
    """Wait if any member waits for a resource; dead only if no member can succeed in another run."""
    for kind in (VerdictKind.BLOCK, VerdictKind.PARK):
        for verdict in verdicts:
            if verdict.kind is kind:
                return verdict
    if verdicts and all(verdict.kind is VerdictKind.DEAD for verdict in verdicts):
        return Verdict.dead()
    waits = [verdict.after for verdict in verdicts if verdict.after is not None]
    return Verdict.retry(max(waits, default=None))
