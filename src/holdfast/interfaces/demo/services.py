"""A mail server and a webhook receiver on loopback that can be stopped and started.

They are real servers: while one is stopped, connections to it are refused. They record what they received, so that it
can be checked at the end.
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


class DemoService:
    """An outside server. `received` maps each order to the message ids that arrived for it."""

    def __init__(self, handler: type[socketserver.BaseRequestHandler], latency: float) -> None:
        self._handler, self.latency = handler, latency
        self.received: defaultdict[int, list[str]] = defaultdict(list)
        self._reserved_socket = _reserve(0)
        self.port: int = self._reserved_socket.getsockname()[1]
        self._server: _ServiceServer | None = None

    @property
    def alive(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        """Starts accepting connections."""
        if self._server is None:
            self._reserved_socket.close()
            self._server = _ServiceServer((_HOST, self.port), self._handler)
            self._server.service = self
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuses connections. The port stays reserved, so that no other process can use it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self._reserved_socket = _reserve(self.port)

    def close(self) -> None:
        self.stop()
        self._reserved_socket.close()

    def accept(self, order_id: int, message_id: str) -> None:
        """Records a request for an order, after the configured latency."""
        time.sleep(self.latency)
        self.received[order_id].append(message_id)


class OutsideServices:
    """The mail server and the webhook receiver."""

    def __init__(self) -> None:
        self.mail = DemoService(_Smtp, latency=0.04)
        self.partner = DemoService(_Http, latency=0.02)

    def restore(self) -> None:
        """Starts every stopped service."""
        self.mail.start()
        self.partner.start()

    def close(self) -> None:
        self.mail.close()
        self.partner.close()


class _ServiceServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    service: DemoService

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignored: a killed worker closes its connection at any point."""


class _Smtp(socketserver.StreamRequestHandler):
    """The subset of SMTP that the demo uses."""

    server: _ServiceServer

    def handle(self) -> None:
        self._say("220 mail.test")
        while line := self.rfile.readline():
            command = line[:4].upper()
            if command == b"DATA":
                self._say("354 continue")
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
    """The subset of HTTP that the demo uses."""

    server: _ServiceServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.service.accept(body["order_id"], self.headers["webhook-id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the terminal shows the demo."""


def _reserve(port: int) -> socket.socket:
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((_HOST, port))
    return reserved
