"""Every change that a console page can make, with the role it requires. The operations write the audit log."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.responses import Response

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.pages import plans, saved_views
from holdfast.interfaces.console.request import ConsoleRequest, Redirect
from holdfast.interfaces.console.user import ROLES, Role
from holdfast.interfaces.presentation.actions import ACTIONS as OPERATOR_ACTIONS
from holdfast.interfaces.presentation.filters import parse_json
from holdfast.interfaces.presentation.operator_action import ActionField, FieldKind, OperatorAction
from holdfast.stores.messages.publish import Published


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """A change: the role it requires, the function that makes it, and its row in the shared table if it has one.

    A change that affects only the user's browser is also allowed in a read-only console.
    """

    role: Role
    run: Callable[[ConsoleRequest], Awaitable[Redirect | Response]]
    action: OperatorAction | None = None
    only_browser: bool = False


def _form_action(action: OperatorAction) -> ConsoleAction:
    async def run(request: ConsoleRequest) -> Redirect:
        form = {name: value.strip() for name, value in request.form.items()}
        reason = form.get("reason") or None
        if "name" not in form:
            raise ConfigurationError("the form has no target; reload the page and try again")
        if action.needs_reason and reason is None:
            raise ConfigurationError("enter a reason; it is shown in the list and recorded in the audit log")
        # The name is not stripped: it is the form's hidden field.
        *parts, last = action.arguments
        item = {**{name: request.form.get(name, "") for name in parts}, last: request.form["name"]}
        fields = {field.name: _read(field, form.get(field.name, "")) for field in action.fields}
        call = action.call(request.ops)
        result = await call(*item.values(), actor=request.user.name, reason=reason, **fields)
        text = action.text(result, {**item, **fields})
        return Redirect(f"{text[:1].upper()}{text[1:]}.", _target(request, action, item, result))

    return ConsoleAction(ROLES[action.scope], run, action)


def _target(request: ConsoleRequest, action: OperatorAction, item: Mapping[str, str], result: object) -> str:
    """The page to show after a change."""
    if isinstance(result, Published):
        return request.url((action.resource.item_page or "/messages/{id}").format(id=result.id))
    if action.page:
        return request.url(action.page, consumer=next(iter(item.values())))
    return request.url(action.resource.item_page.format(**item) or action.resource.page)


def _read(field: ActionField, text: str) -> object:
    if field.required and not text:
        raise ConfigurationError(
            f"{field.name} is empty; enter the {field.help[:1].lower()}{field.help[1:].rstrip('.')}"
        )
    match field.kind:
        case FieldKind.FLAG:
            return text == "yes"
        case FieldKind.NUMBER if text:
            try:
                return int(text)
            except ValueError:
                raise ConfigurationError(f"{field.name} is {text[:40]!r}; enter a whole number") from None
        case FieldKind.JSON:
            return parse_json(text) if text else None
        case _:
            return text or field.default or None


ACTIONS: dict[str, ConsoleAction] = {
    "/plans": ConsoleAction(Role.OPERATOR, plans.preview),
    "/plans/start": ConsoleAction(Role.OPERATOR, plans.start),
    "/plans/pause": ConsoleAction(Role.OPERATOR, plans.pause),
    "/plans/resume": ConsoleAction(Role.OPERATOR, plans.resume),
    "/plans/abandon": ConsoleAction(Role.OPERATOR, plans.abandon),
    **{f"{action.resource.page}/{action.verb}": _form_action(action) for action in OPERATOR_ACTIONS if action.label},
}
"""Changes by the path that receives their form."""

BROWSER_ACTIONS: dict[str, ConsoleAction] = {
    "/views/save": ConsoleAction(Role.VIEWER, saved_views.save, only_browser=True),
    "/views/remove": ConsoleAction(Role.VIEWER, saved_views.remove, only_browser=True),
}
"""Changes of what the user's browser keeps."""
