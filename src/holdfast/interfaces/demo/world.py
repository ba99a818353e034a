"""The world around the shop: a mail server and a partner's webhook receiver, on loopback, that can die and come back.

They are real servers with real sockets: while one is dead, connections to it are refused. What reached them is kept,
so that it can be counted at the end.
"""

import json
import socket
import socketserver
import threading
import time
from collections import defaultdict
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler

_HOST = "127.0.0.1"


class Service:
    """A server outside the shop. `received` has, for each order, the ids under which something came for it."""

    def __init__(self, handler: type[socketserver.BaseRequestHandler], latency: float) -> None:
        self._handler, self.latency = handler, latency
        self.received: defaultdict[int, list[str]] = defaultdict(list)
        self._keeper = _bound(0)
        self.port: int = self._keeper.getsockname()[1]
        self._server: _Server | None = None

    @property
    def alive(self) -> bool:
        return self._server is not None

    def revive(self) -> None:
        """Takes connections, from now on."""
        if self._server is None:
            self._keeper.close()
            self._server = _Server((_HOST, self.port), self._handler)
            self._server.service = self
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def die(self) -> None:
        """Refuses connections, from now on. The port is kept, so that nobody else is met there meanwhile."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self._keeper = _bound(self.port)

    def close(self) -> None:
        self.die()
        self._keeper.close()

    def accept(self, order_id: int, message_id: str) -> None:
        """Something came for an order. Takes its time, as servers do."""
        time.sleep(self.latency)
        self.received[order_id].append(message_id)


class World:
    """Both servers."""

    def __init__(self) -> None:
        self.mail = Service(_Smtp, latency=0.04)
        self.partner = Service(_Http, latency=0.02)

    def heal(self) -> None:
        """Brings back whatever is dead."""
        self.mail.revive()
        self.partner.revive()

    def close(self) -> None:
        self.mail.close()
        self.partner.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    service: Service

    def handle_error(self, request: object, client_address: object) -> None:
        """A worker that was killed hangs up in the middle; that is its affair."""


class _Smtp(socketserver.StreamRequestHandler):
    """As much of SMTP as a receipt needs."""

    server: _Server

    def handle(self) -> None:
        self._say("220 mail.test")
        while line := self.rfile.readline():
            command = line[:4].upper()
            if command == b"DATA":
                self._say("354 go on")
                mail = message_from_bytes(b"".join(iter(self.rfile.readline, b".\r\n")))
                order_id = int(mail["Subject"].removeprefix("Order "))
                self.server.service.accept(order_id, mail["Message-ID"].strip("<>").partition("@")[0])
            elif command == b"QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class _Http(BaseHTTPRequestHandler):
    """As much of HTTP as a webhook needs."""

    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.service.accept(body["order_id"], self.headers["webhook-id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the terminal belongs to the story."""


def _bound(port: int) -> socket.socket:
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((_HOST, port))
    return keeper
