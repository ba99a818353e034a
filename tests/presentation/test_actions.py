"""Operator actions: one table makes the routes of the API, the forms of the console and the commands of the CLI."""

from types import SimpleNamespace

import click
import pytest

from holdfast.interfaces.api.app import ENDPOINTS
from holdfast.interfaces.cli.root import main
from holdfast.interfaces.console import actions as console
from holdfast.interfaces.console.user import ROLES
from holdfast.interfaces.presentation.actions import ACTIONS
from holdfast.interfaces.presentation.operator_action import OperatorAction
from holdfast.stores.messages.publish import Published

EACH = pytest.mark.parametrize("action", ACTIONS, ids=lambda one: f"{one.resource.command}-{one.verb}")


@EACH
def test_an_action_has_the_same_role_in_the_api_and_the_console(action: OperatorAction) -> None:
    path = action.resource.path + ("/{name}/" if len(action.arguments) == 1 else "/") + action.verb
    (route,) = [one for one in ENDPOINTS if (one.method, one.path) == ("POST", path)]
    assert (route.scope, route.summary) == (action.scope, action.summary)
    if action.label:
        assert console.ACTIONS[f"{action.resource.page}/{action.verb}"].role is ROLES[action.scope]


@EACH
def test_an_action_with_a_help_text_is_a_command_with_its_fields(action: OperatorAction) -> None:
    context = click.Context(main)
    group = main.get_command(context, action.resource.command)
    assert isinstance(group, click.Group)
    if not action.help:
        return
    command = group.commands[action.verb]
    assert command.help == action.help
    expected = {*action.arguments, *(field.name for field in action.fields), "reason"}
    assert {one.name for one in command.params if one.expose_value} == expected


@EACH
def test_the_texts_of_an_action_name_only_what_it_receives(action: OperatorAction) -> None:
    given = dict.fromkeys((*action.arguments, *(field.name for field in action.fields)), "mail")
    made = SimpleNamespace(id="new") if action.result is Published else True
    for result in (made, False) if action.unchanged else (made,):
        assert "mail" in action.text(result, given)
    undone = {one.verb for one in ACTIONS if one.resource is action.resource}
    assert action.undo in {"", *undone}
