"""Circuit breakers: how they stand, closing one by hand, opening one by hand."""

from dataclasses import dataclass
from datetime import datetime

from holdfast.core.circuit import CircuitState
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError
from holdfast.core.names import check_name
from holdfast.core.redaction.mask import mask
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.integrations import breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """A circuit as it stands. `until` is when it may next be tried, or when the probe under way ends at the latest."""

    name: str
    state: CircuitState
    failures: int
    until: datetime | None
    since: datetime | None
    why: str | None


def breakers() -> TaskSteps[list[BreakerState]]:
    """Every circuit that had a failure or was tripped, by name."""
    return [_state(one) for one in (yield from transact(breaker.breakers()))]


def reset_breaker(name: str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Closes a circuit and forgets its failures; false when there was nothing to close. Processes see it in a second."""
    return (yield from transact(breaker.reset_breaker(check_name("circuit", name), actor, reason)))


def trip_breaker(name: str, *, actor: str, duration: Duration = "1h", reason: str | None = None) -> TaskSteps[None]:
    """Opens a circuit for `duration`; then it is probed as ever. Processes see it in a second."""
    lasting = to_timedelta(duration, name="duration")
    if not lasting:
        raise ConfigurationError("a circuit cannot be open for no time; give a duration above zero, such as 1h")
    yield from transact(breaker.trip_breaker(check_name("circuit", name), lasting, actor, reason))


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
