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
from holdfast.core.redaction.mask import mask
from holdfast.core.values.arguments import requires_options
from holdfast.core.values.text import storable
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.interfaces.console import template_env
from holdfast.interfaces.console.actions import ACTIONS, BROWSER_ACTIONS, ConsoleAction
from holdfast.interfaces.console.pages import (
    deliveries,
    failures,
    flow,
    job_groups,
    overview,
    plans,
    system,
    workflows,
)
from holdfast.interfaces.console.pages.saved_views import saved_views, view_address
from holdfast.interfaces.console.request import ConsoleRequest, HtmlPage, Redirect, read_form
from holdfast.interfaces.console.security import (
    Forbidden,
    add_security_headers,
    check_csrf_token,
    check_host,
    check_origin,
    is_https,
    read_csrf_token,
    set_csrf_cookie,
)
from holdfast.interfaces.console.stats_cache import StatsCache
from holdfast.interfaces.console.user import Identify, User, identify
from holdfast.interfaces.presentation.refusals import UNAUTHENTICATED, Refusals
from holdfast.ops.service import Operations
from holdfast.produce.request_ids import RequestIdMiddleware

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.console")

_FLASH_COOKIE = "holdfast_flash"

View = Callable[[ConsoleRequest], Awaitable[HtmlPage | Response]]

PAGES: dict[str, View] = {
    "/": overview.overview,
    "/groups": failures.groups,
    "/dead": deliveries.dead_letters,
    "/deliveries": deliveries.deliveries,
    "/deliveries/{id}": deliveries.delivery,
    "/tail": failures.tail,
    "/compare": failures.comparison,
    "/messages": deliveries.messages,
    "/messages/{id}": deliveries.message,
    "/requests": deliveries.request_trace,
    "/find": deliveries.find,
    "/search": deliveries.search,
    "/plans": plans.plans,
    "/plans/{id}": plans.plan,
    "/queues": system.queues,
    "/consumers": system.consumers,
    "/flow": flow.flow,
    "/tenants": flow.tenants,
    "/projectors": system.projectors,
    "/workflows": workflows.workflows,
    "/workflows/{id}": workflows.workflow_run,
    "/job-groups": job_groups.job_groups,
    "/job-groups/{id}": job_groups.job_group,
    "/schedules": system.schedules,
    "/webhooks": system.webhooks,
    "/breakers": system.breakers,
    "/keys": system.keys,
    "/workers": system.workers,
    "/audit": system.audit,
}
"""HtmlPage functions by path."""

_FORMS = {**ACTIONS, **BROWSER_ACTIONS}


@requires_options(
    actor="pass a function that takes a request and returns its user as name and role, such as ('ada', 'operator'), or None "
    "to reject the request"
)
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
    """The console's state in one process. `app` is the ASGI application. `can_sign_out` shows a sign-out button."""

    def __init__(
        self,
        hf: "Holdfast | Operations",
        actor: Identify,
        read_only: bool,
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        *,
        can_sign_out: bool = False,
    ) -> None:
        self._hf, self._actor, self._read_only = hf, actor, read_only
        self._hosts, self._origins = hosts, tuple(origins)
        self._can_sign_out = can_sign_out
        self.cache = StatsCache(lambda: self._ops)
        self._refusals = Refusals("console", lambda: self._ops.store)
        self._runner = f"console/{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._running: set[asyncio.Task[None]] = set()
        self._plans_requested = False
        routes = [Route("/static/{name}", self._static)]
        routes += [Route(path, self._action_route(action), methods=["POST"]) for path, action in _FORMS.items()]
        routes += [Route(path, self._page_route(view)) for path, view in PAGES.items()]
        self.app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={404: self._not_found, 405: self._not_found},
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
        background = [asyncio.create_task(self.cache.sample_forever())]
        if not self._read_only:
            background.append(asyncio.create_task(self._run_plans_forever()))
        try:
            yield
        finally:
            for task in (*background, *self._running):
                task.cancel()
            await asyncio.gather(*background, *self._running, return_exceptions=True)

    def _page_route(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            return await self._handle(request, None, view)

        return show

    def _action_route(self, action: ConsoleAction) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            return await self._handle(request, action, action.run)

        return run

    async def _handle(
        self,
        request: Request,
        action: ConsoleAction | None,
        view: Callable[[ConsoleRequest], Awaitable[HtmlPage | Redirect | Response]],
    ) -> Response:
        """Checks and handles one request. Every response, including errors, gets the security headers."""
        user: User | None = None
        try:
            check_host(request, self._hosts)
            who = await identify(self._actor, request)
            if isinstance(who, Response):
                return add_security_headers(who)
            if who is None:
                raise Forbidden("You don't have access. Sign in with another account, or ask an admin.", 401)
            user = who
            page_request = ConsoleRequest(
                http=request,
                user=user,
                ops=self._ops,
                cache=self.cache,
                csrf_token=read_csrf_token(request),
                read_only=self._read_only,
                form={} if action is None else await read_form(request),
            )
            _check_text({**page_request.query, **page_request.form})
            if action is not None:
                check_origin(request, self._origins)
                check_csrf_token(request, page_request.form)
                if not action.only_browser and not page_request.can(action.role):
                    raise Forbidden(_role_message(page_request, action))
            return self._respond(page_request, await view(page_request))
        except Forbidden as refusal:
            if action is not None:
                await self._record_refusal(user, request, refusal.why)
            return self._error_page(request, refusal.status, "Not allowed", refusal.why, user)
        except NotFound as error:
            return self._error_page(request, 404, "Not found", str(error), user)
        except PermissionDenied as error:
            return self._error_page(request, 403, "Not allowed", str(error), user)
        except StoreError as error:
            return self._error_page(request, 503, "Store error", str(error), user)
        except HoldfastError as error:
            status = 409 if isinstance(error, Refused) else 400
            return self._error_page(request, status, "Request failed", str(error), user)
        except Exception as error:  # noqa: BLE001
            number = secrets.token_hex(4)
            # Without traceback: its variables could contain a payload.
            log.error("console page failed", operation=request.scope["path"], error_id=number, **error_fields(error))
            return self._error_page(
                request, 500, "Internal error", f"The log contains the cause under error_id {number}.", user
            )

    async def _record_refusal(self, user: User | None, request: Request, why: str) -> None:
        name, client = user.name if user else UNAUTHENTICATED, request.client
        await self._refusals.record(
            name, request.method, str(request.scope["path"]), why, client.host if client else None
        )

    def _respond(self, page_request: ConsoleRequest, result: HtmlPage | Redirect | Response) -> Response:
        match result:
            case Redirect(text, to, runs_plan):
                self.cache.invalidate()
                if runs_plan:
                    self._start_plan_runs()
                response: Response = RedirectResponse(to, 303)
                if text:
                    response.set_cookie(
                        _FLASH_COOKIE,
                        quote(text[:300]),
                        max_age=20,
                        path=page_request.root + "/",
                        httponly=True,
                        samesite="strict",
                        secure=is_https(page_request.http),
                    )
            case HtmlPage(template, variables, status):
                flash = unquote(page_request.http.cookies.get(_FLASH_COOKIE, ""))
                response = HTMLResponse(
                    template_env.render(
                        template,
                        {
                            **_page_variables(page_request),
                            "flash": flash,
                            "can_sign_out": self._can_sign_out,
                            **variables,
                        },
                    ),
                    status,
                )
                if flash:
                    response.delete_cookie(_FLASH_COOKIE, path=page_request.root + "/")
                set_csrf_cookie(page_request.http, response, page_request.csrf_token)
            case _:
                response = result
        return add_security_headers(response)

    def _error_page(self, request: Request, status: int, title: str, text: str, user: User | None) -> Response:
        variables = {
            "status": status,
            "title": title,
            "text": mask(text),
            "root": _root(request),
            "user": user,
            "back": _back(request),
        }
        return add_security_headers(HTMLResponse(template_env.render("error.html", variables), status))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self._error_page(request, status, "Not found", "This page does not exist.", None)

    async def _static(self, request: Request) -> Response:
        name = template_env.static_files().get(request.path_params["name"])
        if name is None:
            return await self._not_found(request, NotFound("file", request.path_params["name"]))
        body, media_type = template_env.static_file(name)
        # The name contains a content hash, so the file never changes.
        response = Response(
            body, media_type=media_type, headers={"Cache-Control": "public, max-age=31536000, immutable"}
        )
        return add_security_headers(response)

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
            log.warning("plan execution failed", **error_fields(error))

    async def _run_plans_forever(self) -> None:
        while True:
            await self._run_plans()
            await asyncio.sleep(1)


def _page_variables(page_request: ConsoleRequest) -> Mapping[str, Any]:
    path = str(page_request.http.scope["path"]).removeprefix(page_request.root)
    return {
        "views": saved_views(page_request.http),
        "view_address": view_address(path, page_request.http.url.query),
        "request": page_request,
        "user": page_request.user,
        "root": page_request.root,
        "url": page_request.url,
        "with_query": page_request.with_query,
        "can": page_request.can,
        "csrf_token": page_request.csrf_token,
        "path": path,
        "actions": ACTIONS,
    }


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _back(request: Request) -> str | None:
    """Returns the URL of the console page that sent the form."""
    try:
        referer = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return None
    if request.method != "POST" or referer.netloc != request.headers.get("host"):
        return None
    return f"/{referer.path.lstrip('/')}" + (f"?{referer.query}" if referer.query else "")


def _check_text(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not storable(value):
            raise ConfigurationError(f"{name[:40]!r} contains a character that cannot be stored, such as NUL")


def _role_message(page_request: ConsoleRequest, action: ConsoleAction) -> str:
    if page_request.read_only:
        return "This console is read-only."
    return f"This requires the {action.role} role. {page_request.user.name} has the {page_request.user.role} role."
