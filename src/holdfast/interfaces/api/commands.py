"""Endpoints that change state: replay, discard and cancel by id, and the operator actions of the shared table."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, create_model

from holdfast.interfaces.api.endpoint import ApiCall, ApiEndpoint, Changed, post
from holdfast.interfaces.api.fields import Generation, Text, WithReason
from holdfast.interfaces.presentation.actions import ACTIONS
from holdfast.interfaces.presentation.operator_action import FieldKind, OperatorAction
from holdfast.ops.plans import Report
from holdfast.ops.service import Operations
from holdfast.stores.admin.token import Scope
from holdfast.stores.queries.query import MAX_PAGE

_NAMES = {FieldKind.DURATION: "seconds"}
_TYPES: dict[FieldKind, tuple[Any, object]] = {
    FieldKind.FLAG: (bool, False),
    FieldKind.TEXT: (Text | None, None),
    FieldKind.NUMBER: (int | None, None),
    FieldKind.JSON: (Any, None),
    FieldKind.DURATION: (Annotated[float, Field(gt=0, le=30 * 86400)], 3600),
}

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


def _route(action: OperatorAction) -> ApiEndpoint:
    """The route of an operator action. Fields are in the body; the item is in the path, unless it has several parts."""
    in_path = len(action.arguments) == 1
    body = _body(action, () if in_path else action.arguments)

    async def run(call: ApiCall) -> Any:
        item = (call.name,) if in_path else tuple(getattr(call.body, name) for name in action.arguments)
        given = {field.name: getattr(call.body, _NAMES.get(field.kind, field.name)) for field in action.fields}
        result = await action.call(call.ops)(*item, actor=call.caller.name, reason=call.body.reason, **given)
        return result if action.result is not bool else Changed(result is not False)

    path = f"{action.resource.path}/{'{name}/' if in_path else ''}{action.verb}"
    answer = Changed if action.result is bool else action.result
    return post(path, action.summary, answer, run, body=body, scope=action.scope)


def _body(action: OperatorAction, arguments: tuple[str, ...]) -> type[WithReason]:
    if not arguments and not action.fields:
        return WithReason
    fields: dict[str, Any] = dict.fromkeys(arguments, (Text, ...))
    for field in action.fields:
        kind, default = (Text, ...) if field.required else _TYPES[field.kind]
        described = field.help.partition("  [default")[0]
        fields[_NAMES.get(field.kind, field.name)] = (kind, Field(default, description=described))
    name = f"{action.verb.title().replace('-', '')}Request"
    return create_model(name, __base__=WithReason, __doc__=f"{action.summary}.", **fields)


def _by_id(
    path: str,
    summary: str,
    act: Callable[[Operations], Callable[..., Awaitable[Report]]],
    body: type[DeliveryIdsRequest] = DeliveryIdsRequest,
) -> ApiEndpoint:
    async def handle(call: ApiCall) -> Report:
        return await act(call.ops)(actor=call.caller.name, **call.body.model_dump())

    return post(path, summary, Report, handle, body=body, scope=Scope.OPERATE)


ENDPOINTS = (
    _by_id("/replay", "Replay dead letters by id", lambda ops: ops.replay, ReplayRequest),
    _by_id("/discard", "Discard dead letters permanently, by id", lambda ops: ops.discard),
    _by_id("/cancel", "Cancel pending or running deliveries, by id", lambda ops: ops.cancel),
    *(_route(action) for action in ACTIONS),
)
