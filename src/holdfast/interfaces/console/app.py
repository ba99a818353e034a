"""The console as an ASGI application: mount it in an app or serve it standalone."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError, HoldfastError, NotFound, PermissionDenied, Refused, StoreError
from holdfast.core.mask import mask
from holdfast.core.text import storable
from holdfast.engine.fields import raised
from holdfast.interfaces.console import fleet, overview, plans, templating, work
from holdfast.interfaces.console.actions import CHANGES, Change
from holdfast.interfaces.console.form import read_form
from holdfast.interfaces.console.guard import (
    NotAllowed,
    check_host,
    check_origin,
    check_token,
    is_https,
    keep_token,
    seal,
    token_of,
)
from holdfast.interfaces.console.visit import Page, Said, Visit
from holdfast.interfaces.console.visitor import Identify, Visitor, identify
from holdfast.interfaces.console.watch import Watch
from holdfast.interfaces.refusals import NOBODY, Refusals
from holdfast.ops.service import Operations
from holdfast.produce.request_ids import RequestIdMiddleware

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.console")

_SAID = "holdfast_said"

View = Callable[[Visit], Awaitable[Page | Response]]

SCREENS: dict[str, View] = {
    "/": overview.overview,
    "/groups": work.groups,
    "/dead": work.dead_letters,
    "/deliveries": work.deliveries,
    "/deliveries/{id}": work.delivery,
    "/messages": work.messages,
    "/messages/{id}": work.message,
    "/requests": work.request,
    "/find": work.find,
    "/search": work.search,
    "/plans": plans.plans,
    "/plans/{id}": plans.plan,
    "/queues": fleet.queues,
    "/consumers": fleet.consumers,
    "/projectors": fleet.projectors,
    "/schedules": fleet.schedules,
    "/webhooks": fleet.webhooks,
    "/breakers": fleet.breakers,
    "/keys": fleet.keys,
    "/workers": fleet.workers,
    "/audit": fleet.audit,
}
"""Page functions by path."""


def console(
    hf: "Holdfast | Operations",
    *,
    actor: Identify,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
) -> Starlette:
    """The web console as an ASGI application: `api.mount("/ops", console(hf, actor=staff))`.

    `actor` receives each request and returns its user as name and role, such as `("ada", "operator")`. It returns `None`
    to reject the request, or a response such as a redirect to your login page. It may be async. The roles are viewer,
    operator and admin. `read_only` rejects every change. `hosts` are the accepted `Host` names, any by default. `origins`
    are the origins of the console's pages if a proxy changes the `Host` header.
    """
    return Console(hf, actor, read_only, hosts, origins).app


class Console:
    """The console's state in one process. `app` is the ASGI application. `signed_in` shows a sign-out button."""

    def __init__(
        self,
        hf: "Holdfast | Operations",
        actor: Identify,
        read_only: bool,
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        *,
        signed_in: bool = False,
    ) -> None:
        self._hf, self._actor, self._read_only = hf, actor, read_only
        self._hosts, self._origins = hosts, tuple(origins)
        self._signed_in = signed_in
        self.watch = Watch(lambda: self._ops)
        self._refusals = Refusals("console", lambda: self._ops.store)
        self._runner = f"console/{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._running: set[asyncio.Task[None]] = set()
        self._plans_requested = False
        routes = [Route("/static/{name}", self._static)]
        routes += [Route(path, self._change(change), methods=["POST"]) for path, change in CHANGES.items()]
        routes += [Route(path, self._screen(view)) for path, view in SCREENS.items()]
        self.app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={404: self._missing, 405: self._missing},
            middleware=[Middleware(RequestIdMiddleware)],
        )

    @property
    def _ops(self) -> Operations:
        # Read on every access: importing an application must not open its store.
        return self._hf if isinstance(self._hf, Operations) else self._hf.ops

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Samples statistics and, unless read-only, runs plans. A mounted app gets no lifespan events: it runs a plan when
        a user starts one."""
        watching = [asyncio.create_task(self.watch.keep_watching())]
        if not self._read_only:
            watching.append(asyncio.create_task(self._run_plans_forever()))
        try:
            yield
        finally:
            for task in (*watching, *self._running):
                task.cancel()
            await asyncio.gather(*watching, *self._running, return_exceptions=True)

    def _screen(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            return await self._answer(request, None, view)

        return show

    def _change(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Response:
            return await self._answer(request, change, change.act)

        return act

    async def _answer(
        self, request: Request, change: Change | None, view: Callable[[Visit], Awaitable[Page | Said | Response]]
    ) -> Response:
        """Checks and handles one request. Every response, including errors, gets the security headers."""
        visitor: Visitor | None = None
        try:
            check_host(request, self._hosts)
            who = await identify(self._actor, request)
            if isinstance(who, Response):
                return seal(who)
            if who is None:
                raise NotAllowed("You don't have access. Sign in with another account, or ask an admin.", 401)
            visitor = who
            visit = Visit(
                request=request,
                visitor=visitor,
                ops=self._ops,
                watch=self.watch,
                token=token_of(request),
                read_only=self._read_only,
                form={} if change is None else await read_form(request),
            )
            _check_text({**visit.query, **visit.form})
            if change is not None:
                check_origin(request, self._origins)
                check_token(request, visit.form)
                if not visit.may(change.role):
                    raise NotAllowed(_lacking(visit, change))
            return self._finished(visit, await view(visit))
        except NotAllowed as refusal:
            if change is not None:
                await self._refuse(visitor, request, refusal.why)
            return self._failed(request, refusal.status, "Not allowed", refusal.why, visitor)
        except NotFound as error:
            return self._failed(request, 404, "Not found", str(error), visitor)
        except PermissionDenied as error:
            return self._failed(request, 403, "Not allowed", str(error), visitor)
        except StoreError as error:
            return self._failed(request, 503, "Store unavailable", str(error), visitor)
        except HoldfastError as error:
            status = 409 if isinstance(error, Refused) else 400
            return self._failed(request, status, "Request failed", str(error), visitor)
        except Exception as error:  # noqa: BLE001
            number = secrets.token_hex(4)
            # Without traceback: its variables could contain a payload.
            log.error("console page failed", operation=request.scope["path"], error_id=number, **raised(error))
            return self._failed(
                request, 500, "Internal error", f"The log contains the cause under error_id {number}.", visitor
            )

    async def _refuse(self, visitor: Visitor | None, request: Request, why: str) -> None:
        name, client = visitor.name if visitor else NOBODY, request.client
        await self._refusals.record(
            name, request.method, str(request.scope["path"]), why, client.host if client else None
        )

    def _finished(self, visit: Visit, came: Page | Said | Response) -> Response:
        match came:
            case Said(text, to, runs_plan):
                self.watch.forget()
                if runs_plan:
                    self._start_plan_runs()
                response: Response = RedirectResponse(to, 303)
                if text:
                    response.set_cookie(
                        _SAID,
                        quote(text[:300]),
                        max_age=20,
                        path=visit.root + "/",
                        httponly=True,
                        samesite="strict",
                        secure=is_https(visit.request),
                    )
            case Page(template, shown, status):
                said = unquote(visit.request.cookies.get(_SAID, ""))
                response = HTMLResponse(
                    templating.render(
                        template, {**_common(visit), "said": said, "signed_in": self._signed_in, **shown}
                    ),
                    status,
                )
                if said:
                    response.delete_cookie(_SAID, path=visit.root + "/")
                keep_token(visit.request, response, visit.token)
            case _:
                response = came
        return seal(response)

    def _failed(self, request: Request, status: int, title: str, text: str, visitor: Visitor | None) -> Response:
        shown = {
            "status": status,
            "title": title,
            "text": mask(text),
            "root": _root(request),
            "visitor": visitor,
            "back": _back(request),
        }
        return seal(HTMLResponse(templating.render("error.html", shown), status))

    async def _missing(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self._failed(request, status, "Not found", "This page does not exist.", None)

    async def _static(self, request: Request) -> Response:
        name = templating.static_files().get(request.path_params["name"])
        if name is None:
            return await self._missing(request, NotFound("file", request.path_params["name"]))
        body, media_type = templating.static_file(name)
        # The name contains a content hash, so the file never changes.
        response = Response(
            body, media_type=media_type, headers={"Cache-Control": "public, max-age=31536000, immutable"}
        )
        return seal(response)

    def _start_plan_runs(self) -> None:
        """Runs plans in this process until none is left. A mounted console may have no worker that does it."""
        self._plans_requested = True
        if not self._running:
            task = asyncio.create_task(self._run_requested_plans())
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run_requested_plans(self) -> None:
        while self._plans_requested:
            # Cleared first, so that a plan started during the run causes another run.
            self._plans_requested = False
            await self._run_plans()

    async def _run_plans(self) -> None:
        try:
            await self._ops.advance_plans(runner=self._runner)
            await self._ops.follow_plans()
        except Exception as error:  # noqa: BLE001
            # The loop must survive any error, or later plans would not run.
            log.warning("plan run failed", **raised(error))

    async def _run_plans_forever(self) -> None:
        while True:
            await self._run_plans()
            await asyncio.sleep(1)


def _common(visit: Visit) -> Mapping[str, Any]:
    return {
        "visit": visit,
        "visitor": visit.visitor,
        "root": visit.root,
        "url": visit.url,
        "again": visit.again,
        "may": visit.may,
        "token": visit.token,
        "path": str(visit.request.scope["path"]).removeprefix(visit.root),
    }


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _back(request: Request) -> str | None:
    """Returns the URL of the console page that sent the form."""
    try:
        came = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return None
    if request.method != "POST" or came.netloc != request.headers.get("host"):
        return None
    return f"/{came.path.lstrip('/')}" + (f"?{came.query}" if came.query else "")


def _check_text(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not storable(value):
            raise ConfigurationError(f"{name[:40]!r} contains a character that cannot be stored, such as NUL")


def _lacking(visit: Visit, change: Change) -> str:
    if visit.read_only:
        return "This console is read-only."
    return f"This requires the {change.role} role. {visit.visitor.name} has the {visit.visitor.role} role."
