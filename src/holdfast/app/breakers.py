"""An app's circuit breakers: one per name, shared by all handlers."""

from holdfast.outbound.breaker import BreakerOptions, CircuitBreaker
from holdfast.outbound.circuits import CircuitStore


class Breakers:
    """Creates each breaker at its first use."""

    def __init__(self, circuits: CircuitStore) -> None:
        self._circuits = circuits
        self._made: dict[str, CircuitBreaker] = {}

    def named(self, name: str, options: BreakerOptions) -> CircuitBreaker:
        if name not in self._made:
            self._made[name] = CircuitBreaker(name, self._circuits, **options)
        return self._made[name]

    def invalidate(self) -> None:
        """Discards the state that the breakers have read, after the store or the clock was changed."""
        for breaker in self._made.values():
            breaker.forget()
