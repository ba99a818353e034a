"""The receiver of the lab's webhooks: notes each item, and can fail or hang."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from chaos.journal import SINK, Journal


class Receiver:
    """An HTTP server on loopback. `status` is what it answers; while `hanging` is set it answers nothing."""

    def __init__(self, journal: Journal) -> None:
        self.status = 200
        self.hanging = threading.Event()
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.hanging.is_set():
                    receiver._released.wait(30)
                    return
                if receiver.status == 200:
                    journal.write(SINK, "webhooks", orjson.loads(body)["data"]["item"])
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing: the journal has the items."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/in"

    def recover(self) -> None:
        self.status = 200
        self.hanging.clear()
        self._released.set()
        self._released = threading.Event()

    def close(self) -> None:
        self.recover()
        self._server.shutdown()
        self._server.server_close()
