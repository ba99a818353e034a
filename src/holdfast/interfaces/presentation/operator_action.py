"""The type of an operator action: its texts, its fields, and the method of `ops` that it calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from holdfast.ops.service import Operations, SyncOperations
from holdfast.stores.admin.token import Scope


class FieldKind(Enum):
    """How a front end reads a field: a flag, a text, a JSON value, a whole number, or a duration with a default."""

    FLAG = auto()
    TEXT = auto()
    JSON = auto()
    NUMBER = auto()
    DURATION = auto()


@dataclass(frozen=True, slots=True)
class ActionField:
    """A parameter of an action. `help` describes the option of the CLI; a `required` one is an argument there."""

    name: str
    kind: FieldKind
    help: str
    default: str = ""
    required: bool = False
    alias: str | None = None
    """A second name of the option of the CLI."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The items that actions change: their names in texts and in `ops`, the path of their list in the API, and their
    names in the console and the CLI.

    `item_page` is the page of one item in the console, with its arguments in braces; without one, the list is shown.
    """

    noun: str
    method: str
    path: str
    page: str
    command: str
    item_page: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """One action on one item.

    `arguments` identify the item; the last one is its name. `done` and `unchanged` are the result in words. `effect`
    is the text in the console's form, `undo` the action that reverts it. An empty `label` means that the
    console does not offer it, an empty `help` that the CLI does not. The CLI asks before it does what `confirm` describes.
    """

    resource: Resource
    verb: str
    summary: str
    done: str
    unchanged: str = ""
    scope: Scope = Scope.OPERATE
    arguments: tuple[str, ...] = ("name",)
    fields: tuple[ActionField, ...] = ()
    result: Any = bool
    label: str
    effect: str = ""
    is_dangerous: bool = False
    needs_reason: bool = False
    help: str = ""
    undo: str = ""
    confirm: Callable[[Mapping[str, Any]], str] | None = None
    confirm_verb: str = ""
    method: str = ""
    """The method of `ops`, if its name is not the verb and the resource."""
    page: str = ""
    """The page of the console that lists the item, with its first argument as a parameter, if `resource` has another."""
    shown: tuple[str, ...] = ()
    """The fields whose values the result in words ends with."""

    def call(self, ops: Operations | SyncOperations) -> Callable[..., Any]:
        """The method of `ops` that makes the change, such as `pause_queue`."""
        method: Callable[..., Any] = getattr(ops, self.method or f"{self.verb}_{self.resource.method}")
        return method

    def text(self, result: object, given: Mapping[str, object]) -> str:
        """Describes what the action did. `given` are its arguments and fields."""
        shown = ", ".join(result) if type(result) is tuple else result
        if result is False:
            return self.unchanged.format(result=shown, **given)
        values = ", ".join(f"{name} {given[name]}" for name in self.shown if given.get(name) is not None)
        return self.done.format(result=shown, **given) + (f": {values}" if values else "")


def new_action(resource: Resource, verb: str, **more: Any) -> OperatorAction:
    """An action with the usual texts, unless others are given."""
    texts = {
        "summary": f"{verb.capitalize()} a {resource.noun}",
        "done": f"{resource.noun} {{name}} {verb}d",
        "label": verb.capitalize(),
    }
    return OperatorAction(resource=resource, verb=verb, **{**texts, **more})
