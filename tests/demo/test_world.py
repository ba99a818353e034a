"""The world around the demo's shop: servers that really die, and come back."""

import socket
from collections.abc import Iterator

import pytest

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
