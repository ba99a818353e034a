"""Standalone server: console, HTTP API, health checks and metrics on one port."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.core.errors import ConfigurationError, HoldfastError, Refused
from holdfast.core.telemetry.metric import exposition
from holdfast.interfaces.api.app import PREFIX, api
from holdfast.interfaces.api.auth import forwarded_by, is_loopback
from holdfast.interfaces.api.endpoint import Caller
from holdfast.interfaces.console.app import Console
from holdfast.interfaces.console.login import LoginSessions
from holdfast.interfaces.console.security import LOOPBACK, Forbidden, check_host
from holdfast.interfaces.console.user import ROLES, Role, User
from holdfast.interfaces.metrics.server import CONTENT_TYPE
from holdfast.interfaces.server.connection import create_server
from holdfast.ops.service import Operations

Auth = Literal["none", "token"]
_HEALTH = ("/healthz", "/readyz")
_FORWARDED = (
    "This console has no login and answers only direct requests from this machine. "
    "This request passed through a proxy (it has the header {header}).\n"
    "Start the console with --auth token to use it behind a proxy.\n"
)
_STOP_SECONDS = 5.0
_SCOPES = {role: scope for scope, role in ROLES.items()}


def check_exposure(host: str, auth: Auth) -> None:
    """Rejects a public address without authentication."""
    if auth == "none" and not is_loopback(host):
        raise Refused(
            "serve the console on",
            host,
            "reachable from other machines without a login",
            "add --auth token, or use 127.0.0.1",
        )


def standalone(
    ops: Operations, *, host: str, auth: Auth, actor: str, read_only: bool = False, role: Role = Role.ADMIN
) -> ASGIApp:
    """Console, API, health and metrics as one application.

    Without authentication every user of this machine is `actor` with `role`. Requests for another host name (DNS
    rebinding) and requests that passed a proxy are rejected. With `token`, every user signs in with an API token.
    """
    check_exposure(host, auth)
    extra: list[BaseRoute] = []
    anonymous = None
    if auth == "token":
        login = LoginSessions(ops)
        console = Console(ops, login.actor, read_only, can_sign_out=True)
        extra += login.routes
    else:
        local = User(actor, role)
        console = Console(ops, lambda _: local, read_only, hosts=(*LOOPBACK, host))
        anonymous = Caller(actor, _SCOPES[role])
    inner = api(ops, anonymous=anonymous, read_only=read_only)

    async def metrics(request: Request) -> Response:
        try:
            if auth == "none":
                check_host(request, (*LOOPBACK, host))
            elif not await _bearer(ops, request):
                return PlainTextResponse("authentication required; send Authorization: Bearer TOKEN\n", 401)
            families = await console.cache.read("metrics", lambda ops: ops.metrics())
        except Forbidden as refusal:
            return PlainTextResponse(f"{refusal.why}\n", refusal.status)
        except HoldfastError:
            return PlainTextResponse("the store is unavailable; see /readyz and the log\n", 503)
        return PlainTextResponse(exposition(families), media_type=CONTENT_TYPE)

    pages = Starlette(routes=[*extra, Route("/metrics", metrics), Mount("/", console.app)], lifespan=console.lifespan)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        target: ASGIApp = inner if path.startswith(f"{PREFIX}/") or path in _HEALTH else pages
        if anonymous is not None and target is pages and scope["type"] == "http":
            # The API has its own check; health checks are public.
            header = forwarded_by(HTTPConnection(scope).headers)
            target = pages if header is None else PlainTextResponse(_FORWARDED.format(header=header), 403)
        await target(scope, receive, send)

    return dispatch


async def _bearer(ops: Operations, request: Request) -> bool:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    found = await ops.recognise_token(secret.strip()) if kind.lower() == "bearer" else None
    return found is not None and found.valid


def open_port(host: str, port: int) -> socket.socket:
    """Returns a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise ConfigurationError(
            f"{host}:{port} cannot be used: {error.strerror}; choose another port with --port"
        ) from None
    return bound


async def serve(app: ASGIApp, bound: socket.socket, stop: asyncio.Event) -> None:
    """Serves until `stop` is set. Running requests have three seconds to finish."""
    server = create_server(app)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


@contextlib.contextmanager
def serve_in_thread(ops: Operations, *, port: int, actor: str, role: Role = Role.ADMIN) -> Iterator[str]:
    """Serves the console on loopback from a background thread. Yields its URL. Closes the store at the end."""
    host = LOOPBACK[1]
    with open_port(host, port) as bound:
        app = standalone(ops, host=host, auth="none", actor=actor, role=role)
        loop, stop = asyncio.new_event_loop(), asyncio.Event()

        async def run() -> None:
            await serve(app, bound, stop)
            await ops.store.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="holdfast-console", daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{bound.getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(_STOP_SECONDS)
            loop.close()
