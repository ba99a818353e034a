"""Circuit breakers as operators see and turn them."""

from datetime import timedelta

import pytest

from holdfast import CircuitBreaker, CircuitOpen, StoreCircuits
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import ConfigurationError, InvalidName, NotFound
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.ops.test_acting import acts


async def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        with pytest.raises((ConnectionError, CircuitOpen)):
            async with breaker.guard():
                raise ConnectionError("no route")


async def test_they_are_listed_with_their_state_and_its_reason(store: Store, ops: Operations) -> None:
    assert await ops.breakers() == []
    await fail(CircuitBreaker("a", StoreCircuits(store), threshold=5), 2)
    await fail(CircuitBreaker("b", StoreCircuits(store), threshold=1, cooldown="5m", jitter=0), 1)
    one, other = await ops.breakers()
    assert (one.name, one.state, one.failures, one.until) == ("a", CircuitState.CLOSED, 2, None)
    assert (other.name, other.state, other.why) == ("b", CircuitState.OPEN, "ConnectionError: no route")
    assert other.until is not None
    assert timedelta(minutes=4) < other.until - await ops.now() <= timedelta(minutes=5)


async def test_resetting_one_closes_it_for_everybody(store: Store, ops: Operations) -> None:
    breaker = CircuitBreaker("mail", StoreCircuits(store), threshold=1)
    await fail(breaker, 1)
    assert await ops.reset_breaker("mail", actor="ada", reason="smtp is back")
    breaker.forget()
    assert not (await breaker.admit()).probe
    assert not await ops.reset_breaker("mail", actor="ada")
    assert [act[:4] for act in await acts(store)] == [("ada", "reset", "breaker", "mail")] * 2
    (state,) = await ops.breakers()
    assert state.why == "reset by ada"


async def test_tripping_one_opens_it_also_before_its_first_failure(store: Store, ops: Operations) -> None:
    await ops.trip_breaker("mail", actor="ada", duration="10m", reason="smtp moves", force=True)
    breaker = CircuitBreaker("mail", StoreCircuits(store))
    with pytest.raises(CircuitOpen) as raised:
        await breaker.admit()
    assert isinstance(raised.value.until, timedelta)
    assert timedelta(minutes=9) < raised.value.until <= timedelta(minutes=10)
    assert await acts(store) == [("ada", "trip", "breaker", "mail", "smtp moves")]
    (state,) = await ops.breakers()
    assert state.why == "tripped by ada: smtp moves"


async def test_a_slip_of_the_pen_changes_nothing(store: Store, ops: Operations) -> None:
    with pytest.raises(NotFound, match="breakers list"):
        await ops.reset_breaker("mial", actor="ada")
    with pytest.raises(NotFound, match="no circuit 'mial' in this store; known: none yet; force"):
        await ops.trip_breaker("mial", actor="ada")
    with pytest.raises(InvalidName):
        await ops.trip_breaker("no blanks", actor="ada")
    with pytest.raises(ConfigurationError):
        await ops.trip_breaker("mail", actor="ada", duration=0)
    assert await acts(store) == []
    assert await ops.breakers() == []
