"""Metrics over HTTP: `metrics_app` to mount in an application, `serve_metrics` for a worker process."""

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import orjson

from holdfast._log import get_logger
from holdfast.app.telemetry import MetricsCollector
from holdfast.core.errors import ConfigurationError, HoldfastError
from holdfast.core.telemetry.metric import exposition
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.ops.readiness import Readiness

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.metrics")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TIMEOUT = 10.0
_CONNECTIONS = 16

Message = MutableMapping[str, Any]
Page = Callable[[], tuple[int, str, bytes]]
"""A status, a content type and a body."""


def metrics_app(
    hf: "Holdfast",
) -> Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]:
    """An ASGI app that serves the metrics: `api.mount("/metrics", metrics_app(hf))`.

    It does not authenticate requests. Make it reachable only by your monitoring system.
    """
    figures = MetricsCollector(hf)

    async def answer(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        allowed = scope["method"] in ("GET", "HEAD")
        body = (
            (await asyncio.to_thread(lambda: exposition(figures.families()))).encode()
            if allowed
            else b"method not allowed\n"
        )
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if allowed else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return answer


@contextlib.contextmanager
def serve_metrics(hf: "Holdfast", host: str, port: int) -> Iterator[int]:
    """Serves `/metrics`, `/healthz` and `/readyz` of an app from separate threads. Yields the bound port."""
    figures = MetricsCollector(hf)
    pages: dict[str, Page] = {
        "/metrics": lambda: (200, CONTENT_TYPE, exposition(figures.families()).encode()),
        "/healthz": lambda: _health(200, {"status": "ok"}),
        "/readyz": _ready(hf),
    }
    try:
        server = _MetricsServer((host, port), pages)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be served at {host}:{port} ({error.strerror or error}); choose another --metrics-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True)
    thread.start()
    log.info("metrics server started", url=f"http://{host}:{server.server_port}/metrics")
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _MetricsServer(ThreadingHTTPServer):
    """Serves one request per connection and a limited number of connections at a time.

    It shares file descriptors and threads with the worker, so a client must not hold many of them. Each client has
    `_TIMEOUT` seconds to send its request. At the limit, a new connection evicts the one that has waited longest.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._waiting: dict[socket.socket, float] = {}
        self._open = 0
        self._change = threading.Condition()
        super().__init__(address, _RequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._change:
            if self._open >= _CONNECTIONS and self._waiting:
                _disconnect(next(iter(self._waiting)))
            # The evicted connection ends immediately. If all are being served, the new one waits.
            if not self._change.wait_for(lambda: self._open < _CONNECTIONS, timeout=_TIMEOUT):
                super().shutdown_request(request)
                return
            self._open += 1
            self._waiting[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Runs twice a second and closes connections whose request is not complete in time."""
        with self._change:
            for one, since in self._waiting.items():
                if time.monotonic() - since > _TIMEOUT:
                    _disconnect(one)

    def mark_received(self, request: socket.socket) -> None:
        """Records that the request of a client is complete."""
        with self._change:
            self._waiting.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._change:
            self._waiting.pop(request, None)
            self._open -= 1
            self._change.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # the client disconnected
            log.error("metrics request failed", **({} if error is None else error_fields(error)))


class _RequestHandler(BaseHTTPRequestHandler):
    """Serves GET. The client must read the response within `_TIMEOUT` seconds."""

    timeout = _TIMEOUT
    server: _MetricsServer

    def do_GET(self) -> None:
        self.server.mark_received(self.connection)
        page = self.server.pages.get(self.path.partition("?")[0].rstrip("/"), _unknown)
        status, content_type, body = page()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("cache-control", "no-store")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: monitoring systems send a request every few seconds."""


def _ready(hf: "Holdfast") -> Page:
    readiness = Readiness()

    def answer() -> tuple[int, str, bytes]:
        try:
            hf.ops.sync.schema_status().check()
        except HoldfastError as error:
            return _health(503, {"status": "unready", "reason": readiness.unready(error)})
        readiness.ready()
        return _health(200, {"status": "ready"})

    return answer


def _health(status: int, body: Mapping[str, str]) -> tuple[int, str, bytes]:
    return status, "application/json", orjson.dumps(body)


def _unknown() -> tuple[int, str, bytes]:
    return 404, CONTENT_TYPE, b"see /metrics, /healthz and /readyz\n"


def _disconnect(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        connection.shutdown(socket.SHUT_RDWR)
