"""What can be done: replaying, discarding and cancelling by id, and pausing, unblocking, resetting."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from holdfast.interfaces.api.endpoint import Call, Changed, Endpoint
from holdfast.interfaces.api.fields import Generation, Text, WithReason
from holdfast.ops.plans import Report
from holdfast.stores.publish import Published
from holdfast.stores.query import MAX_PAGE
from holdfast.stores.token import Scope

Ids = Annotated[tuple[UUID, ...], Field(min_length=1, max_length=MAX_PAGE)]


class DeliveryIdsRequest(WithReason):
    """Which deliveries, by id."""

    ids: Ids


class ReplayRequest(DeliveryIdsRequest):
    """Which dead letters to replay. Without a generation each gets the highest alive for its consumer.

    `rerun` runs again what is done, too; it takes the scope admin.
    """

    generation: Generation | None = None
    rerun: bool = False


class PauseRequest(WithReason):
    """A queue that nobody has named yet is paused only with `force`."""

    force: bool = False


class TripRequest(WithReason):
    """For how many seconds the circuit stays open."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600


class ReleaseRequest(WithReason):
    """Which key to let go of; one that was answered only with `force`: its effect would happen again."""

    scope: Text
    key: Text
    force: bool = False


class RetireRequest(WithReason):
    """Which subscription ends; every one without a pattern."""

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
    chosen = {"scope": Scope.OPERATE, **more}
    return Endpoint(method="POST", path=path, summary=summary, answer=answer, handle=handle, body=body, **chosen)


ENDPOINTS = (
    _post("/replay", "Replay dead letters by id", _replay, ReplayRequest, Report),
    _post("/discard", "Set dead letters aside for good, by id", _discard, DeliveryIdsRequest, Report),
    _post("/cancel", "Cancel pending or running deliveries, by id", _cancel, DeliveryIdsRequest, Report),
    _post("/queues/{name}/pause", "Claim nothing of a queue until it is resumed", _pause_queue, PauseRequest),
    _post("/queues/{name}/resume", "Claim from a queue again", _resume_queue),
    _post("/consumers/{name}/pause", "Claim nothing of a consumer until it is resumed", _pause_consumer),
    _post("/consumers/{name}/resume", "Claim for a consumer again", _resume_consumer),
    _post("/consumers/{name}/unblock", "Let a blocked consumer try again at once", _unblock_consumer),
    _post(
        "/consumers/{name}/retire",
        "End a consumer's subscriptions",
        _retire_consumer,
        RetireRequest,
        list[str],
        scope=Scope.ADMIN,
    ),
    _post("/schedules/{name}/pause", "Fire nothing until it is resumed", _pause_schedule),
    _post("/schedules/{name}/resume", "Fire again", _resume_schedule),
    _post("/schedules/{name}/run", "Run a schedule's job once, now", _run_schedule, answer=Published),
    _post(
        "/webhooks/{name}/disable",
        "Hold an endpoint's deliveries and make no more",
        _disable_webhook,
        scope=Scope.ADMIN,
    ),
    _post("/webhooks/{name}/enable", "Go on with an endpoint", _enable_webhook, scope=Scope.ADMIN),
    _post("/breakers/{name}/reset", "Close a circuit", _reset_breaker),
    _post("/breakers/{name}/trip", "Open a circuit for a while", _trip_breaker, TripRequest),
    _post("/idempotency-keys/release", "Let a key be used anew", _release_key, ReleaseRequest, scope=Scope.ADMIN),
    _post("/tokens/{name}/revoke", "End a token at once, by its id or name", _revoke_token, scope=Scope.ADMIN),
)
