"""An HTTP service on loopback that can be stopped, accepts one token and counts what it created."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from holdfast.interfaces.demo.services import DemoService


class TokenRejected(Exception):
    """The provider rejected the token."""


class Provider(DemoService):
    """Creates one item per idempotency key."""

    def __init__(self) -> None:
        super().__init__(_Requests, latency=0.0)
        self.token = "drill"  # noqa: S105
        self.made: dict[str, int] = {}
        self.calls = 0
        self._http = build_opener(ProxyHandler({}))

    def make(self, order_id: int, key: str, token: str) -> None:
        """Sends an HTTP request; raises what a client would see."""
        request = Request(
            f"http://127.0.0.1:{self.port}/things",
            data=json.dumps({"order_id": order_id}).encode(),
            headers={"authorization": f"Bearer {token}", "idempotency-key": key},
        )
        try:
            self._http.open(request, timeout=5).close()
        except HTTPError as error:
            error.close()
            if error.code == 401:
                raise TokenRejected("the provider answered 401") from None
            raise


class _Requests(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        provider: Any = self.server.service  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider.calls += 1
        known = self.headers["authorization"] == f"Bearer {provider.token}"
        if known:
            provider.made[self.headers["idempotency-key"]] = body["order_id"]
        self.send_response(201 if known else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Silent: the drill reports results itself."""
