"""Telling metrics over HTTP: `metrics_app` in an application of yours, `serving` beside a worker."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import structlog

from holdfast.app.telemetry import Figures
from holdfast.core.errors import ConfigurationError
from holdfast.core.metric import exposition

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = structlog.get_logger("holdfast.metrics")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PATIENCE = 10.0

Message = MutableMapping[str, Any]


def metrics_app(
    hf: "Holdfast",
) -> Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]:
    """An ASGI app that answers every GET with the metrics: `api.mount("/metrics", metrics_app(hf))`.

    It asks for no credentials: put it where only your monitor reaches it.
    """
    figures = Figures(hf)

    async def answer(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        known = scope["method"] in ("GET", "HEAD")
        body = (await asyncio.to_thread(lambda: exposition(figures.families()))).encode() if known else b"only GET\n"
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if known else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return answer


@contextlib.contextmanager
def serving(hf: "Holdfast", host: str, port: int) -> Iterator[int]:
    """Tells an app's metrics at `http://host:port/metrics` from threads of its own; gives the port it took."""
    figures = Figures(hf)

    class Answer(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] in ("/metrics", "/metrics/")
            body = exposition(figures.families()).encode() if known else b"see /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("content-type", CONTENT_TYPE)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a monitor comes every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Answer)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be told at {host}:{port} ({error.strerror or error}); choose another --metrics-port"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True)
    thread.start()
    log.info("metrics are told", url=f"http://{host}:{server.server_port}/metrics")
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
