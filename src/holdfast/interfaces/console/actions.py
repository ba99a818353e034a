"""Every change that a console page can make, with the role it requires. The operations write the audit log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console import plan_pages
from holdfast.interfaces.console.request import ConsoleRequest, Redirect
from holdfast.interfaces.console.user import Role


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """A change: the role it requires and the function that makes it."""

    role: Role
    run: Callable[[ConsoleRequest], Awaitable[Redirect]]


def _target(request: ConsoleRequest) -> str:
    name = request.form.get("name", "")
    if not name:
        raise ConfigurationError("the form has no target; reload the page and try again")
    return name


def _reason(request: ConsoleRequest) -> str | None:
    return request.form.get("reason", "").strip() or None


async def _pause_queue(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    await request.ops.pause_queue(name, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Queue {name} paused. Running deliveries finish.", request.url("/queues"))


async def _resume_queue(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    resumed = await request.ops.resume_queue(name, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Queue {name} resumed." if resumed else f"Queue {name} was not paused.", request.url("/queues"))


async def _pause_consumer(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    await request.ops.pause_consumer(name, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Consumer {name} paused. Running deliveries finish.", request.url("/consumers"))


async def _resume_consumer(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    resumed = await request.ops.resume_consumer(name, actor=request.user.name, reason=_reason(request))
    return Redirect(
        f"Consumer {name} resumed." if resumed else f"Consumer {name} was not paused.", request.url("/consumers")
    )


async def _unblock_consumer(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    unblocked = await request.ops.unblock_consumer(name, actor=request.user.name, reason=_reason(request))
    return Redirect(
        f"Consumer {name} unblocked." if unblocked else f"Consumer {name} was not blocked.", request.url("/consumers")
    )


async def _pause_schedule(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    await request.ops.pause_schedule(name, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Schedule {name} paused.", request.url("/schedules"))


async def _resume_schedule(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    resumed = await request.ops.resume_schedule(name, actor=request.user.name, reason=_reason(request))
    return Redirect(
        f"Schedule {name} resumed." if resumed else f"Schedule {name} was not paused.", request.url("/schedules")
    )


async def _run_schedule(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    published = await request.ops.run_schedule(name, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Run of {name} enqueued.", request.url(f"/messages/{published.id}"))


async def _reset_breaker(request: ConsoleRequest) -> Redirect:
    name = _target(request)
    closed = await request.ops.reset_breaker(name, actor=request.user.name, reason=_reason(request))
    return Redirect(
        f"Circuit {name} closed." if closed else f"Circuit {name} was already closed.", request.url("/breakers")
    )


async def _trip_breaker(request: ConsoleRequest) -> Redirect:
    name, duration = _target(request), request.form.get("duration", "").strip() or "1h"
    await request.ops.trip_breaker(name, actor=request.user.name, duration=duration, reason=_reason(request))
    return Redirect(f"Circuit {name} opened for {duration}.", request.url("/breakers"))


async def _disable_webhook(request: ConsoleRequest) -> Redirect:
    id, why = _target(request), _reason(request)
    if why is None:
        raise ConfigurationError("enter a reason; the owner of the endpoint will ask for it")
    await request.ops.disable_webhook(id, actor=request.user.name, reason=why)
    return Redirect(f"Endpoint {id} disabled. Waiting deliveries are held.", request.url("/webhooks"))


async def _enable_webhook(request: ConsoleRequest) -> Redirect:
    id = _target(request)
    await request.ops.enable_webhook(id, actor=request.user.name, reason=_reason(request))
    return Redirect(f"Endpoint {id} enabled.", request.url("/webhooks"))


async def _release_key(request: ConsoleRequest) -> Redirect:
    scope, key = request.form.get("scope", ""), _target(request)
    was = await request.ops.release_idempotency_key(
        scope, key, actor=request.user.name, reason=_reason(request), force=request.form.get("force") == "yes"
    )
    return Redirect(f"Key {key} released; its state was {was}.", request.url("/keys"))


ACTIONS: dict[str, ConsoleAction] = {
    "/plans": ConsoleAction(Role.OPERATOR, plan_pages.preview),
    "/plans/start": ConsoleAction(Role.OPERATOR, plan_pages.start),
    "/plans/pause": ConsoleAction(Role.OPERATOR, plan_pages.pause),
    "/plans/resume": ConsoleAction(Role.OPERATOR, plan_pages.resume),
    "/plans/abandon": ConsoleAction(Role.OPERATOR, plan_pages.abandon),
    "/queues/pause": ConsoleAction(Role.OPERATOR, _pause_queue),
    "/queues/resume": ConsoleAction(Role.OPERATOR, _resume_queue),
    "/consumers/pause": ConsoleAction(Role.OPERATOR, _pause_consumer),
    "/consumers/resume": ConsoleAction(Role.OPERATOR, _resume_consumer),
    "/consumers/unblock": ConsoleAction(Role.OPERATOR, _unblock_consumer),
    "/schedules/pause": ConsoleAction(Role.OPERATOR, _pause_schedule),
    "/schedules/resume": ConsoleAction(Role.OPERATOR, _resume_schedule),
    "/schedules/run": ConsoleAction(Role.OPERATOR, _run_schedule),
    "/breakers/reset": ConsoleAction(Role.OPERATOR, _reset_breaker),
    "/breakers/trip": ConsoleAction(Role.OPERATOR, _trip_breaker),
    "/webhooks/disable": ConsoleAction(Role.ADMIN, _disable_webhook),
    "/webhooks/enable": ConsoleAction(Role.ADMIN, _enable_webhook),
    "/keys/release": ConsoleAction(Role.ADMIN, _release_key),
}
"""Changes by the path that receives their form."""
