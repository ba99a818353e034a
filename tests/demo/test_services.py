"""The services around the demo's shop: servers that really die, and come back."""

import socket
from collections.abc import Iterator

import pytest

from holdfast.interfaces.demo.services import OutsideServices


@pytest.fixture
def services() -> Iterator[OutsideServices]:
    services = OutsideServices()
    yield services
    services.close()


def test_a_dead_server_refuses_and_comes_back_on_its_port(services: OutsideServices) -> None:
    port = services.mail.port
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        services.restore()
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            assert connection.recv(100).startswith(b"220")
        assert services.mail.port == port
        services.mail.stop()
        assert not services.mail.alive
