"""The console as an ASGI application, to be mounted anywhere or served alone."""

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
from holdfast.core.errors import ConfigurationError, HoldfastError, NotFound, Refused, StoreError
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
from holdfast.interfaces.refusals import Refusals
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
"""Every screen by its path."""


def console(
    hf: "Holdfast | Operations",
    *,
    actor: Identify,
    read_only: bool = False,
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
) -> Starlette:
    """The web console as an ASGI application: `api.mount("/ops", console(hf, actor=staff))`.

    `actor` is asked for every request who it is from; it returns a name and a role, such as `("ada", "operator")`, or
    none to refuse, or a response such as a redirect to your login. It may be async. The roles are viewer, operator
    and admin; `read_only` makes everybody a viewer. `hosts` are the names the console answers to, any by default.
    `origins` are those your pages have where a proxy changes the Host.
    """
    return Console(hf, actor, read_only, hosts, origins).app


class Console:
    """The console's state in one process; `app` is what is served. `signed_in` says that visitors can sign out."""

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
        self._asked = False
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
        # Asked anew each time: importing an application must not need its store.
        return self._hf if isinstance(self._hf, Operations) else self._hf.ops

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Served alone, it watches all the time and carries plans on, unless it is to change nothing. Mounted, it does so
        while somebody looks."""
        watching = [asyncio.create_task(self.watch.keep_watching())]
        if not self._read_only:
            watching.append(asyncio.create_task(self._carry_on()))
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
        """One request from the door to the answer; whatever happens in between, the answer is sealed."""
        visitor: Visitor | None = None
        try:
            check_host(request, self._hosts)
            who = await identify(self._actor, request)
            if isinstance(who, Response):
                return seal(who)
            if who is None:
                raise NotAllowed("nobody is signed in, or whoever is may not come in here", 401)
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
        except StoreError as error:
            return self._failed(request, 503, "The store cannot be reached", str(error), visitor)
        except HoldfastError as error:
            status = 409 if isinstance(error, Refused) else 400
            return self._failed(request, status, "That cannot be done", str(error), visitor)
        except Exception as error:  # noqa: BLE001
            number = secrets.token_hex(4)
            # The error alone: a traceback with its variables could hold a payload.
            log.error("a page of the console broke", operation=request.scope["path"], error_id=number, **raised(error))
            return self._failed(request, 500, "This page broke", f"The log says why, under error_id {number}.", visitor)

    async def _refuse(self, visitor: Visitor | None, request: Request, why: str) -> None:
        name, client = visitor.name if visitor else "nobody", request.client
        await self._refusals.record(
            name, request.method, str(request.scope["path"]), why, client.host if client else None
        )

    def _finished(self, visit: Visit, came: Page | Said | Response) -> Response:
        match came:
            case Said(text, to, carry):
                self.watch.forget()
                if carry:
                    self._start_carrying()
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
        return self._failed(request, status, "Not found", "There is no such page here.", None)

    async def _static(self, request: Request) -> Response:
        name = templating.static_files().get(request.path_params["name"])
        if name is None:
            return await self._missing(request, NotFound("file", request.path_params["name"]))
        body, media_type = templating.static_file(name)
        # The name holds the content's mark, so it may be kept for good.
        response = Response(
            body, media_type=media_type, headers={"Cache-Control": "public, max-age=31536000, immutable"}
        )
        return seal(response)

    def _start_carrying(self) -> None:
        """Carries plans on in this process until none runs: mounted, there may be no worker that would."""
        self._asked = True
        if not self._running:
            task = asyncio.create_task(self._carry_while_asked())
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry_while_asked(self) -> None:
        while self._asked:
            # Taken back before it looks: what is started meanwhile is looked for again.
            self._asked = False
            await self._carry_once()

    async def _carry_once(self) -> None:
        try:
            await self._ops.advance_plans(runner=self._runner)
            await self._ops.follow_plans()
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the next plan must find somebody.
            log.warning("plans are not carried on for now", **raised(error))

    async def _carry_on(self) -> None:
        while True:
            await self._carry_once()
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
    """The page of this console from which a form was sent."""
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
            raise ConfigurationError(f"{name[:40]!r} holds a character that cannot be stored, such as NUL")


def _lacking(visit: Visit, change: Change) -> str:
    if visit.read_only:
        return "this console shows and changes nothing"
    return f"this takes the role {change.role}; {visit.visitor.name} is {visit.visitor.role}"
