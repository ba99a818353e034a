"""Endpoints that change state: replay, discard and cancel by id; pause, resume, retire, trip, release and revoke."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from holdfast.interfaces.api.endpoint import Call, Changed, Endpoint
from holdfast.interfaces.api.fields import Generation, Text, WithReason
from holdfast.ops.plans import Report
from holdfast.stores.admin.token import Scope
from holdfast.stores.messages.publish import Published
from holdfast.stores.queries.query import MAX_PAGE

Ids = Annotated[tuple[UUID, ...], Field(min_length=1, max_length=MAX_PAGE)]


class DeliveryIdsRequest(WithReason):
    """Deliveries, by id."""

    ids: Ids


class ReplayRequest(DeliveryIdsRequest):
    """Dead letters to replay. Without `generation` each gets the highest live generation of its consumer.

    `rerun` also runs deliveries that are already delivered. It requires the scope `admin`.
    """

    generation: Generation | None = None
    rerun: bool = False


class PauseRequest(WithReason):
    """`force` pauses a queue even if no consumer or job uses it yet."""

    force: bool = False


class TripRequest(WithReason):
    """`seconds` is the time that the circuit stays open."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600


class ReleaseRequest(WithReason):
    """Key to release. A completed key requires `force`, because its effect can then happen again."""

    scope: Text
    key: Text
    force: bool = False


class RetireRequest(WithReason):
    """Subscription to end. Without `pattern` all subscriptions end."""

    pattern: Text | None = None


async def _replay(call: Call) -> Report:
    body: ReplayRequest = call.body
    return await call.ops.replay(
        body.ids, actor=call.caller.name, reason=body.reason, generation=body.generation, rerun=body.rerun
    )


async def _discard(call: Call) -> Report:
    return await call.ops.discard(call.body.ids, actor=call.caller.name, reason=call.body.reason)


async def _cancel(call: Call) -> Report:
    return await call.ops.cancel(call.body.ids, actor=call.caller.name, reason=call.body.reason)


async def _pause_queue(call: Call) -> Changed:
    body: PauseRequest = call.body
    await call.ops.pause_queue(call.name, actor=call.caller.name, reason=body.reason, force=body.force)
    return Changed(True)


async def _resume_queue(call: Call) -> Changed:
    return Changed(await call.ops.resume_queue(call.name, actor=call.caller.name, reason=call.body.reason))


async def _pause_consumer(call: Call) -> Changed:
    await call.ops.pause_consumer(call.name, actor=call.caller.name, reason=call.body.reason)
    return Changed(True)


async def _resume_consumer(call: Call) -> Changed:
    return Changed(await call.ops.resume_consumer(call.name, actor=call.caller.name, reason=call.body.reason))


async def _unblock_consumer(call: Call) -> Changed:
    return Changed(await call.ops.unblock_consumer(call.name, actor=call.caller.name, reason=call.body.reason))


async def _pause_schedule(call: Call) -> Changed:
    await call.ops.pause_schedule(call.name, actor=call.caller.name, reason=call.body.reason)
    return Changed(True)


async def _resume_schedule(call: Call) -> Changed:
    return Changed(await call.ops.resume_schedule(call.name, actor=call.caller.name, reason=call.body.reason))


async def _run_schedule(call: Call) -> Published:
    return await call.ops.run_schedule(call.name, actor=call.caller.name, reason=call.body.reason)


async def _disable_webhook(call: Call) -> Changed:
    return Changed(await call.ops.disable_webhook(call.name, actor=call.caller.name, reason=call.body.reason))


async def _enable_webhook(call: Call) -> Changed:
    return Changed(await call.ops.enable_webhook(call.name, actor=call.caller.name, reason=call.body.reason))


async def _reset_breaker(call: Call) -> Changed:
    return Changed(await call.ops.reset_breaker(call.name, actor=call.caller.name, reason=call.body.reason))


async def _trip_breaker(call: Call) -> Changed:
    body: TripRequest = call.body
    await call.ops.trip_breaker(call.name, actor=call.caller.name, duration=body.seconds, reason=body.reason)
    return Changed(True)


async def _release_key(call: Call) -> Changed:
    body: ReleaseRequest = call.body
    await call.ops.release_idempotency_key(
        body.scope, body.key, actor=call.caller.name, reason=body.reason, force=body.force
    )
    return Changed(True)


async def _retire_consumer(call: Call) -> list[str]:
    body: RetireRequest = call.body
    ended = await call.ops.retire_consumer(call.name, actor=call.caller.name, reason=body.reason, pattern=body.pattern)
    return list(ended)


async def _revoke_token(call: Call) -> Changed:
    await call.ops.revoke_token(call.name, actor=call.caller.name, reason=call.body.reason)
    return Changed(True)


def _post(path: str, summary: str, handle: Any, body: Any = WithReason, answer: Any = Changed, **more: Any) -> Endpoint:
    options = {"scope": Scope.OPERATE, **more}
    return Endpoint(method="POST", path=path, summary=summary, answer=answer, handle=handle, body=body, **options)


ENDPOINTS = (
    _post("/replay", "Replay dead letters by id", _replay, ReplayRequest, Report),
    _post("/discard", "Discard dead letters permanently, by id", _discard, DeliveryIdsRequest, Report),
    _post("/cancel", "Cancel pending or running deliveries, by id", _cancel, DeliveryIdsRequest, Report),
    _post("/queues/{name}/pause", "Pause a queue", _pause_queue, PauseRequest),
    _post("/queues/{name}/resume", "Resume a queue", _resume_queue),
    _post("/consumers/{name}/pause", "Pause a consumer", _pause_consumer),
    _post("/consumers/{name}/resume", "Resume a consumer", _resume_consumer),
    _post("/consumers/{name}/unblock", "Unblock a consumer immediately", _unblock_consumer),
    _post(
        "/consumers/{name}/retire",
        "End a consumer's subscriptions",
        _retire_consumer,
        RetireRequest,
        list[str],
        scope=Scope.ADMIN,
    ),
    _post("/schedules/{name}/pause", "Pause a schedule", _pause_schedule),
    _post("/schedules/{name}/resume", "Resume a schedule", _resume_schedule),
    _post("/schedules/{name}/run", "Run the job of a schedule once, now", _run_schedule, answer=Published),
    _post(
        "/webhooks/{name}/disable",
        "Disable a webhook endpoint and hold its deliveries",
        _disable_webhook,
        scope=Scope.ADMIN,
    ),
    _post("/webhooks/{name}/enable", "Enable a webhook endpoint", _enable_webhook, scope=Scope.ADMIN),
    _post("/breakers/{name}/reset", "Close a circuit", _reset_breaker),
    _post("/breakers/{name}/trip", "Open a circuit for a given time", _trip_breaker, TripRequest),
    _post("/idempotency-keys/release", "Release an idempotency key", _release_key, ReleaseRequest, scope=Scope.ADMIN),
    _post("/tokens/{name}/revoke", "Revoke a token, by id or name", _revoke_token, scope=Scope.ADMIN),
)
