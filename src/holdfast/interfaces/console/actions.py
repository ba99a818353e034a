"""Every change that a console page can make, with the role it requires. The operations write the audit log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console import plans
from holdfast.interfaces.console.visit import Said, Visit
from holdfast.interfaces.console.visitor import Role


@dataclass(frozen=True, slots=True)
class Change:
    """A change: the role it requires and the function that makes it."""

    role: Role
    act: Callable[[Visit], Awaitable[Said]]


def _named(visit: Visit) -> str:
    name = visit.form.get("name", "")
    if not name:
        raise ConfigurationError("the form has no target; reload the page and try again")
    return name


def _why(visit: Visit) -> str | None:
    return visit.form.get("reason", "").strip() or None


async def _pause_queue(visit: Visit) -> Said:
    name = _named(visit)
    await visit.ops.pause_queue(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Queue {name} paused. Running deliveries finish.", visit.url("/queues"))


async def _resume_queue(visit: Visit) -> Said:
    name = _named(visit)
    resumed = await visit.ops.resume_queue(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Queue {name} resumed." if resumed else f"Queue {name} was not paused.", visit.url("/queues"))


async def _pause_consumer(visit: Visit) -> Said:
    name = _named(visit)
    await visit.ops.pause_consumer(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Consumer {name} paused. Running deliveries finish.", visit.url("/consumers"))


async def _resume_consumer(visit: Visit) -> Said:
    name = _named(visit)
    resumed = await visit.ops.resume_consumer(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Consumer {name} resumed." if resumed else f"Consumer {name} was not paused.", visit.url("/consumers"))


async def _unblock_consumer(visit: Visit) -> Said:
    name = _named(visit)
    unblocked = await visit.ops.unblock_consumer(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(
        f"Consumer {name} unblocked." if unblocked else f"Consumer {name} was not blocked.", visit.url("/consumers")
    )


async def _pause_schedule(visit: Visit) -> Said:
    name = _named(visit)
    await visit.ops.pause_schedule(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Schedule {name} paused.", visit.url("/schedules"))


async def _resume_schedule(visit: Visit) -> Said:
    name = _named(visit)
    resumed = await visit.ops.resume_schedule(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Schedule {name} resumed." if resumed else f"Schedule {name} was not paused.", visit.url("/schedules"))


async def _run_schedule(visit: Visit) -> Said:
    name = _named(visit)
    published = await visit.ops.run_schedule(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Run of {name} enqueued.", visit.url(f"/messages/{published.id}"))


async def _reset_breaker(visit: Visit) -> Said:
    name = _named(visit)
    closed = await visit.ops.reset_breaker(name, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Circuit {name} closed." if closed else f"Circuit {name} was already closed.", visit.url("/breakers"))


async def _trip_breaker(visit: Visit) -> Said:
    name, duration = _named(visit), visit.form.get("duration", "").strip() or "1h"
    await visit.ops.trip_breaker(name, actor=visit.visitor.name, duration=duration, reason=_why(visit))
    return Said(f"Circuit {name} opened for {duration}.", visit.url("/breakers"))


async def _disable_webhook(visit: Visit) -> Said:
    id, why = _named(visit), _why(visit)
    if why is None:
        raise ConfigurationError("enter a reason; the owner of the endpoint will ask for it")
    await visit.ops.disable_webhook(id, actor=visit.visitor.name, reason=why)
    return Said(f"Endpoint {id} disabled. Waiting deliveries are held.", visit.url("/webhooks"))


async def _enable_webhook(visit: Visit) -> Said:
    id = _named(visit)
    await visit.ops.enable_webhook(id, actor=visit.visitor.name, reason=_why(visit))
    return Said(f"Endpoint {id} enabled.", visit.url("/webhooks"))


async def _release_key(visit: Visit) -> Said:
    scope, key = visit.form.get("scope", ""), _named(visit)
    was = await visit.ops.release_idempotency_key(
        scope, key, actor=visit.visitor.name, reason=_why(visit), force=visit.form.get("force") == "yes"
    )
    return Said(f"Key {key} released; its state was {was}.", visit.url("/keys"))


CHANGES: dict[str, Change] = {
    "/plans": Change(Role.OPERATOR, plans.preview),
    "/plans/start": Change(Role.OPERATOR, plans.start),
    "/plans/pause": Change(Role.OPERATOR, plans.pause),
    "/plans/resume": Change(Role.OPERATOR, plans.resume),
    "/plans/abandon": Change(Role.OPERATOR, plans.abandon),
    "/queues/pause": Change(Role.OPERATOR, _pause_queue),
    "/queues/resume": Change(Role.OPERATOR, _resume_queue),
    "/consumers/pause": Change(Role.OPERATOR, _pause_consumer),
    "/consumers/resume": Change(Role.OPERATOR, _resume_consumer),
    "/consumers/unblock": Change(Role.OPERATOR, _unblock_consumer),
    "/schedules/pause": Change(Role.OPERATOR, _pause_schedule),
    "/schedules/resume": Change(Role.OPERATOR, _resume_schedule),
    "/schedules/run": Change(Role.OPERATOR, _run_schedule),
    "/breakers/reset": Change(Role.OPERATOR, _reset_breaker),
    "/breakers/trip": Change(Role.OPERATOR, _trip_breaker),
    "/webhooks/disable": Change(Role.ADMIN, _disable_webhook),
    "/webhooks/enable": Change(Role.ADMIN, _enable_webhook),
    "/keys/release": Change(Role.ADMIN, _release_key),
}
"""Changes by the path that receives their form."""
