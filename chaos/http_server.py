"""An HTTP server whose requests have an `Idempotency-Key`: one row for each, committed together with its response.

Usage: python -m chaos.http_server PORT
"""

import os
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from chaos.application import close_connection, spelled, transaction
from holdfast import Holdfast
from holdfast.idempotency.wsgi import WsgiIdempotencyMiddleware

DSN = os.environ.get("HOLDFAST_DSN", "")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: the journal has the requests."""


def create_order(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The row and the response: one commit."""
    item = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
    try:
        with transaction(DSN) as db:
            db.execute(spelled(DSN, "insert into chaos_effect (load, item) values (?, ?)"), ("http", item))
            environ["holdfast.idempotency"].sync.complete({"item": item}, status=201, conn=db)
    finally:
        close_connection()  # each request has a separate thread
    start_response("201 Created", [("Content-Type", "text/plain")])
    return [item.encode()]


def main(port: int) -> None:
    hf = Holdfast(DSN)
    application = WsgiIdempotencyMiddleware(create_order, hf=hf, scope=lambda request: "lab", lease="2s")
    with make_server("127.0.0.1", port, application, _Server, _QuietHandler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
