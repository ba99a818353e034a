"""Circuit breakers: listing them, and opening or closing one."""

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.redaction.mask import mask
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.ops.queries.filter_names import unknown_name
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.integrations import breaker
from holdfast.stores.integrations.webhook import listed_endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """A circuit. `until` is when it may next be probed, or when the running probe ends at the latest."""

    name: str
    state: CircuitState
    failures: int
    until: datetime | None
    since: datetime | None
    why: str | None


def breakers() -> TaskSteps[list[BreakerState]]:
    """All circuits that had a failure or were tripped, by name."""
    return [_state(one) for one in (yield from transact(breaker.breakers()))]


def reset_breaker(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Closes a circuit and resets its failures; false if it was closed. Processes see it within a second."""
    return (yield from transact(breaker.reset_breaker(check_name("circuit", name), actor, reason)))


def trip_breaker(
    name: str, *, actor: str, duration: Duration = "1h", reason: str | None = None, force: bool = False
) -> TaskSteps[None]:
    """Opens a circuit for `duration`; then it is probed as usual. Processes see it within a second.

    A circuit is stored with its first failure, or with its webhook endpoint. Another name is `NotFound` unless `force`,
    because a typing error must not look like an open circuit.
    """
    check_name("circuit", name)
    open_for = to_timedelta(duration, name="duration")
    if not open_for:
        raise ConfigurationError("the duration is zero; pass one above zero, such as 1h")
    if not force:
        known = {one.name for one in (yield from transact(breaker.breakers()))}
        known |= {one.consumer for one in (yield from transact(listed_endpoints()))}
        if name not in known:
            error = unknown_name("circuit", name, known)
            raise NotFound(error.what, name, f"{error.hint}; force (--force) opens one that has not failed yet")
    yield from transact(breaker.trip_breaker(name, open_for, actor, reason))


def _state(stored: breaker.StoredBreaker) -> BreakerState:
    circuit, state = stored.circuit, stored.circuit.state(stored.now)
    return BreakerState(
        name=stored.name,
        state=state,
        failures=circuit.failures,
        until=circuit.probe_until if state is CircuitState.PROBING else circuit.open_until,
        since=circuit.changed_at,
        why=None if circuit.why is None else mask(circuit.why),
    )
