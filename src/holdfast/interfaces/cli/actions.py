"""Commands of the operator actions, made from the shared table."""

import shlex
from typing import Any

import click

from holdfast.interfaces.cli.deliveries.publish import print_published
from holdfast.interfaces.cli.filters import JSON
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.actions import ACTIONS, RUNS
from holdfast.interfaces.presentation.operator_action import ActionField, FieldKind, OperatorAction, Resource
from holdfast.stores.messages.publish import Published

REASON = click.option("--reason", metavar="TEXT", help="Reason, stored in the audit log.")
_REQUIRED_REASON = click.option(
    "--reason", metavar="TEXT", required=True, help="Reason, shown in the list and stored in the audit log."
)


def add_actions(group: click.Group, resource: Resource) -> None:
    """Adds a command for each action on these items that has a help text."""
    for action in ACTIONS:
        if action.resource is resource and action.help:
            _add(group, action)


def _add(group: click.Group, action: OperatorAction) -> None:
    def run(**given: Any) -> None:
        _run(action, given)

    function = (_REQUIRED_REASON if action.needs_reason else REASON)(run)
    for field in reversed(action.fields):
        function = _option(field)(function)
    for name in reversed(action.arguments):
        function = click.argument(name)(function)
    command(group, name=action.verb, help=action.help, acts=True)(function)


def _option(field: ActionField) -> Any:
    if field.required:
        return click.argument(field.name)
    match field.kind:
        case FieldKind.FLAG:
            return click.option(f"--{field.name}", is_flag=True, help=field.help)
        case FieldKind.TEXT:
            names = [f"--{name}" for name in (field.name, field.alias) if name is not None]
            return click.option(*names, field.name, metavar=field.name.upper(), help=field.help)
        case FieldKind.NUMBER:
            return click.option(f"--{field.name}", type=int, metavar="N", help=field.help)
        case FieldKind.JSON:
            return click.option(f"--{field.name}", type=JSON, metavar="JSON", help=field.help)
        case FieldKind.DURATION:
            return click.option("--for", field.name, default=field.default, show_default=True, help=field.help)


def _run(action: OperatorAction, given: dict[str, Any]) -> None:
    reason = given.pop("reason")
    item = [given[name] for name in action.arguments]
    fields = {field.name: given[field.name] for field in action.fields}
    ops = settings().operations()
    if action.confirm is not None:
        settings().confirm(action.confirm_verb or action.verb, action.confirm(given))
    result = action.call(ops)(*item, actor=settings().who(), reason=reason, **fields)
    match result:
        case Published():
            print_published(result, "started" if action.resource is RUNS else "enqueued")
        case tuple() if not settings().tabular:
            show_json(settings(), {"consumer": item[-1], "ended": result})
        case _:
            again = shlex.join(["holdfast", action.resource.command, action.undo, *item])
            undo = f"; {action.undo.partition('-')[0]} it with `{again}`" if action.undo and result is not False else ""
            note(action.text(result, given) + undo)
