"""The alert that is posted to an address, against a real server on loopback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError
from uuid import uuid4

import pytest

from holdfast.alerts import DeadLetterAlert, webhook_hook
from holdfast.core.errors import ConfigurationError

ALERT = DeadLetterAlert(
    event_id=uuid4(),
    delivery_id=uuid4(),
    event_type="order.placed",
    source="shop",
    target="billing",
    queue="payments",
    handler="billing",
    last_error="card declined",
    error_type="CardDeclined",
    fingerprint="0123456789abcdef",
    attempts=5,
    alike=3,
)


class Receiver(BaseHTTPRequestHandler):
    received: list[dict[str, object]]
    answer = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append({"authorization": self.headers["authorization"], **json.loads(body)})
        self.send_response(self.answer)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    kind = type("Receiver", (Receiver,), {"received": []})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/alerts", kind
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_dead_letter_is_posted_with_everything_an_operator_needs(receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    webhook_hook(url, headers={"authorization": "Bearer x"})(ALERT)
    (got,) = kind.received
    assert got["authorization"] == "Bearer x"
    assert got["consumer"] == "billing"
    assert got["event_id"] == str(ALERT.event_id)
    assert (got["error"], got["attempt"], got["alike"]) == ("card declined", 5, 3)


def test_a_receiver_that_refuses_raises_so_that_the_failure_is_logged(receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    kind.answer = 500
    with pytest.raises(HTTPError) as refused:
        webhook_hook(url)(ALERT)
    refused.value.close()


def test_an_address_that_is_no_web_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="http"):
        webhook_hook("file:///etc/passwd")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: tuple[str, type[Receiver]], status: int) -> None:
    url, kind = receiver

    def redirect(self: Receiver) -> None:
        self.received.append({"path": self.path})
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        self.end_headers()

    kind.do_POST = kind.do_GET = redirect  # type: ignore[method-assign,attr-defined]
    with pytest.raises(HTTPError) as refused:
        webhook_hook(url, headers={"authorization": "Bearer x"})(ALERT)
    refused.value.close()
    assert kind.received == [{"path": "/alerts"}]
