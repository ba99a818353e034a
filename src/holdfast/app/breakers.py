"""An app's circuit breakers: one of each name, so that what one handler learns all others know."""

from holdfast.outbound.breaker import BreakerOptions, CircuitBreaker
from holdfast.outbound.circuits import CircuitStore


class Breakers:
    """Makes them when they are first asked for."""

    def __init__(self, circuits: CircuitStore) -> None:
        self._circuits = circuits
        self._made: dict[str, CircuitBreaker] = {}

    def named(self, name: str, options: BreakerOptions) -> CircuitBreaker:
        if name not in self._made:
            self._made[name] = CircuitBreaker(name, self._circuits, **options)
        return self._made[name]

    def invalidate(self) -> None:
        """Makes them forget what they saw: the store is another, or time was moved."""
        for breaker in self._made.values():
            breaker.forget()
