"""The world around the demo's shop: servers that really die, and a circuit that notices."""

import socket
from collections.abc import Iterator

import pytest

from holdfast import CircuitOpen
from holdfast.interfaces.demo.circuit import Circuit
from holdfast.interfaces.demo.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_a_dead_server_refuses_and_comes_back_on_its_port(world: World) -> None:
    port = world.mail.port
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        world.heal()
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            assert connection.recv(100).startswith(b"220")
        assert world.mail.port == port
        world.mail.die()
        assert not world.mail.alive


def test_a_circuit_opens_after_failures_in_a_row_and_lets_one_call_look() -> None:
    circuit = Circuit("partner", threshold=2, cooldown=60)
    _fail(circuit)
    with circuit.guard():
        pass
    _fail(circuit)
    _fail(circuit)
    with pytest.raises(CircuitOpen) as parked, circuit.guard():
        raise AssertionError("nothing may pass")
    assert 0 < parked.value.until.total_seconds() <= 60  # type: ignore[union-attr]


def test_a_circuit_closes_when_the_call_that_looks_succeeds() -> None:
    circuit = Circuit("partner", threshold=1, cooldown=0.001)
    _fail(circuit)
    for _ in range(3):
        while True:
            try:
                with circuit.guard():
                    break
            except CircuitOpen:
                continue


def _fail(circuit: Circuit) -> None:
    with pytest.raises(ConnectionError), circuit.guard():
        raise ConnectionError
