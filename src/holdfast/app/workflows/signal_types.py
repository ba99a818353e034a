"""Types of the signals that a workflow waits for, read from the code of its steps.

A step names a signal and its type where it waits: `ctx.wait("approved", Approval)`. A worker checks a payload when the wait ends,
which is too late for the sender: a wrong one fails the step. So the sender checks it against the same code before it is stored.
"""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Union

from holdfast.core.events import payload
from holdfast.core.events.validation import fitting_value
from holdfast.core.workflows.names import step_consumer
from holdfast.engine.handlers.handler import Handler, takes_context
from holdfast.engine.workflows.declaration import WorkflowDeclaration

Function = Callable[..., Any]
Waits = tuple[tuple[str, Any], ...]

FORCE = "; to send it unchecked, use force (--force on the command line)"
"""The remedy of an operator whose run is of another release than this code."""

_ANNOTATION = (
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Constant,
    ast.BinOp,
    ast.BitOr,
    ast.Load,
)


def check_signal(
    declaration: WorkflowDeclaration, handlers: Mapping[str, Handler], signal: str, value: object, remedy: str = ""
) -> None:
    """Raises `InvalidPayload` for a value that fits no wait for this signal.

    It passes if a step waits for this signal without a type, or if the signals of a step cannot be read from its code.
    """
    steps = [handlers.get(step_consumer(declaration.name, step)) for step in declaration.steps]
    types = [] if None in steps else _types(signal, (one.function for one in steps if one is not None))
    if types and Any not in types:
        # As a worker reads it: a dataclass or a model is stored as its fields.
        stored = payload.decode(payload.encode(value))
        expected = types[0] if len(types) == 1 else Union[tuple(types)]  # noqa: UP007
        fitting_value(stored, expected, f"signal {signal}", f"; nothing was stored{remedy}")


def _types(signal: str, functions: Iterable[Function]) -> list[Any]:
    """The types of all waits for a signal; empty if there is none, or if one may be where it cannot be seen."""
    found: list[Any] = []
    for function in functions:
        waits = _waits(inspect.unwrap(function))
        if waits is None:
            return []
        found += [type for name, type in waits if name == signal and type not in found]
    return found


@lru_cache(maxsize=512)
def _waits(function: Function) -> Waits | None:
    """The signals and types of all waits of a step; None if its code passes the context on, or names a signal at run time."""
    if not takes_context(function):
        return ()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    context = next(iter(inspect.signature(function).parameters))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    namespace = _namespace(function, tree)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id != context:
            continue
        used = parents[node]
        if isinstance(used, ast.Attribute) and used.attr == "sync":
            used = parents[used]
        if not isinstance(used, ast.Attribute):
            return None
        if used.attr == "wait":
            call = parents[used]
            wait = _wait(call, namespace) if isinstance(call, ast.Call) and call.func is used else None
            if wait is None:
                return None
            found.append(wait)
    return tuple(found)


def _wait(call: ast.Call, namespace: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The signal and the type of one call of `wait`; None if its signal is not written as a text."""
    given = dict(zip(("signal", "type"), call.args, strict=False)) | {one.arg: one.value for one in call.keywords}
    signal, annotation = given.get("signal"), given.get("type")
    if None in given or not isinstance(signal, ast.Constant) or not isinstance(signal.value, str):
        return None
    return signal.value, Any if annotation is None else _evaluated(annotation, namespace)


def _evaluated(annotation: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """The type that an expression of names means; `Any` for another expression, or for a name of the running function."""
    if not all(isinstance(node, _ANNOTATION) for node in ast.walk(annotation)):
        return Any
    code = compile(ast.Expression(annotation), "<type of a signal>", "eval")
    try:
        found = eval(code, {"__builtins__": {}}, dict(namespace))  # noqa: S307 # names of the app's own code
    except (NameError, AttributeError, TypeError):
        return Any
    return Any if isinstance(found, str) else found


def _namespace(function: Function, tree: ast.AST) -> dict[str, Any]:
    """What the names in a function mean, without those that it assigns."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = {name: cell.cell_contents for name, cell in cells if cell != type(cell)()}
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assigned |= {*function.__code__.co_varnames, *function.__code__.co_cellvars}  # also of imports
    known = {**vars(builtins), **function.__globals__, **enclosing}
    return {name: value for name, value in known.items() if name not in assigned}
