"""The names of a workflow's parts in the store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

from holdfast.core.errors import InvalidName
from holdfast.core.identity import delivery_id
from holdfast.core.values.names import MAX_NAME, check_name

COMMANDS = "holdfast/workflows"
"""The consumer that applies signals, triggers, cancellations and the ends of child runs."""

CANCEL = "workflow.cancel"
"""The type of the command that cancels a run."""

DEADLINE = "deadline:step"
"""The name of the row that has the deadline of a step."""

_START = "workflow.start."
_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNDO = ":undo"


def start_type(workflow: str) -> str:
    """The type of the message that starts a run."""
    return _START + workflow


def is_start(type: str) -> bool:
    """Whether a message of this type is the start of a run, so that its deliveries are steps."""
    return type.startswith(_START)


def step_consumer(workflow: str, step: str) -> str:
    """The consumer of a step."""
    return f"{workflow}/{step}"


def step_delivery_id(run_id: UUID, workflow: str, step: str, epoch: int = 0) -> UUID:
    """The delivery of a step. After a retry of the run from a step, the steps that run again have new deliveries."""
    consumer = step_consumer(workflow, step)
    return delivery_id(run_id, f"{consumer}@{epoch}" if epoch else consumer)


def item_name(step: str, parent: str, call: int) -> str:
    """The name of the items of one `ctx.map` call: the mapped step, the step that called it, and the number of the call."""
    return f"{step}@{parent}#{call}"


def item_parts(name: str) -> tuple[str, str, int]:
    """The parts of a name of `item_name`: the mapped step, the step that called it, and the number of the call."""
    step, _, rest = name.partition("@")
    parent, _, call = rest.rpartition("#")
    return step, parent, int(call)


def is_item(name: str) -> bool:
    """Whether `item_name` built this name."""
    return "@" in name


def map_join(parent: str, step: str, call: int) -> str:
    """The name of the join of one `ctx.map` call, which the step that called it remembers."""
    return memo_name(parent, f"map:{step}#{call}")


def step_of(consumer: str) -> str:
    """The step of a consumer of a workflow."""
    return consumer.rpartition("/")[2]


def undo_of(step: str) -> str:
    """The name of the step that undoes a step."""
    return step + _UNDO


def is_undo(step: str) -> bool:
    """Whether this step undoes another one."""
    return step.endswith(_UNDO)


def undone_step(step: str) -> str:
    """The step that an undo step undoes."""
    return step.removesuffix(_UNDO)


def check_workflow_name(value: str) -> str:
    """Return `value` if it is valid as a workflow's name, else raise `InvalidName`."""
    check_name("workflow", value)
    if "/" in value or len(value) > MAX_NAME // 2:
        raise InvalidName(
            "workflow",
            value,
            "it has a slash" if "/" in value else "it is too long",
            "1 to 50 characters of A-Z a-z 0-9 _ : -",
        )
    return value


def check_step_name(workflow: str, value: str) -> str:
    """Return `value` if a parameter can have this name, else raise `InvalidName`."""
    if not isinstance(value, str) or not _STEP.fullmatch(value) or len(step_consumer(workflow, value)) > MAX_NAME - 5:
        raise InvalidName(
            "step", value, "it must also be valid as the name of a parameter",
            "letters, digits and underscores, not starting with a digit, at most 44 characters",
        )  # fmt: skip
    return value


def name_array(names: Iterable[str]) -> str:
    """Names as a JSON text inside a row of a batch, which both databases read; they need no escapes.

    >>> name_array(["reserve", "charge"])
    '["reserve","charge"]'
    """
    return "[" + ",".join(f'"{name}"' for name in names) + "]"


def memo_name(step: str, name: str) -> str:
    """The name under which a step remembers a value, a wait or a join of items."""
    return f"{step}/{name}"
