"""The graph of a run as a drawing: steps in layers from top to bottom, and lines between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.values.bounded_count import BoundedCount
from holdfast.core.workflows.graph import Node
from holdfast.core.workflows.names import is_undo
from holdfast.core.workflows.state import StepState
from holdfast.interfaces.presentation.workflows import duration, step_note, word
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.stores.workflows.query import StepRecord

_WIDTH, _HEIGHT, _GAP, _DROP, _EDGE = 148, 56, 14, 34, 6
_NAME, _NOTE = 17, 24
# The state that a step with many items shows: the first of these that an item has.
_WORST = (
    StepState.DEAD,
    StepState.BLOCKED,
    StepState.RETRY_WAIT,
    StepState.RUNNING,
    StepState.REPLAYING,
    StepState.WAITING,
    StepState.QUEUED,
    StepState.CANCELLED,
    StepState.IDLE,
    StepState.DONE,
)


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A step in the drawing, at its upper left corner."""

    x: int
    y: int
    name: str
    label: str
    state: str
    word: str
    note: str
    title: str
    delivery: str | None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A line from a step to a step that waits for it. `is_done` means that the first of the two is done."""

    path: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class RunGraph:
    """The drawing of a run."""

    width: int
    height: int
    step_width: int
    step_height: int
    steps: tuple[GraphStep, ...]
    edges: tuple[GraphEdge, ...]


def run_graph(detail: WorkflowRunDetail) -> RunGraph | None:
    """The drawing of a run; None without a stored graph. Steps that undo others are not part of it."""
    if not detail.graph:
        return None
    records: dict[str, list[StepRecord]] = {}
    for step in detail.steps:
        if not is_undo(step.name):
            records.setdefault(step.name, []).append(step)
    layers = _layers(detail.graph)
    columns = max(len(layer) for layer in layers)
    width = columns * _WIDTH + (columns - 1) * _GAP + 2 * _EDGE
    places: dict[str, tuple[int, int]] = {}
    for row, layer in enumerate(layers):
        left = (width - len(layer) * _WIDTH - (len(layer) - 1) * _GAP) // 2
        for column, name in enumerate(layer):
            places[name] = (left + column * (_WIDTH + _GAP), _EDGE + row * (_HEIGHT + _DROP))
    done = {name for name, own in records.items() if all(one.state is StepState.DONE for one in own)}
    return RunGraph(
        width,
        len(layers) * (_HEIGHT + _DROP) - _DROP + 2 * _EDGE,
        _WIDTH,
        _HEIGHT,
        tuple(_step(detail, node, places[node.name], records.get(node.name, [])) for node in detail.graph),
        tuple(
            GraphEdge(_path(places[before], places[node.name]), before in done)
            for node in detail.graph
            for before in node.after
        ),
    )


def _layers(nodes: Sequence[Node]) -> list[list[str]]:
    """The steps by their longest distance from a first step, each layer ordered by the steps before. Mapped steps last."""
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.name] = 1 + max((depth[before] for before in node.after), default=-1)
    deepest = max((depth[node.name] for node in nodes if not node.mapped), default=-1)
    layers: dict[int, list[Node]] = {}
    for node in nodes:
        layers.setdefault(deepest + 1 if node.mapped else depth[node.name], []).append(node)
    ordered: list[list[str]] = []
    position: dict[str, float] = {}
    for level in sorted(layers):
        layer = sorted(layers[level], key=lambda node: _middle(node, position))
        ordered.append([node.name for node in layer])
        position |= {node.name: (n + 0.5) / len(layer) for n, node in enumerate(layer)}
    return ordered


def _middle(node: Node, position: Mapping[str, float]) -> float:
    """The mean position of the preceding steps, so that fewer lines cross."""
    return sum(position[before] for before in node.after) / len(node.after) if node.after else 0.5


def _path(begin: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = begin[0] + _WIDTH // 2, begin[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH // 2, end[1] - 5
    bend = min(_DROP, (y2 - y1) // 2)
    return f"M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"


def _step(detail: WorkflowRunDetail, node: Node, place: tuple[int, int], own: Sequence[StepRecord]) -> GraphStep:
    states = {one.state for one in own}
    if node.mapped:
        counts = [one for one in detail.items if one.step == node.name]
        states = {StepState(state) for one in counts for state in one.states}
        finished = sum(one.states.get(StepState.DONE.value, 0) for one in counts)
        every = BoundedCount(sum(sum(one.states.values()) for one in counts), any(one.or_more for one in counts))
        note = f"{finished:,} of {every:,} items done" if counts else "no items yet"
        delivery = None
    else:
        step = own[0] if own else StepRecord(name=node.name, state=StepState.IDLE)
        took = duration(step.started_at, step.ended_at)
        note = step_note(detail, step) or took
        if step.attempts > 1:
            note = f"{note}, " * bool(note) + f"{step.attempts} attempts"
        delivery = None if step.delivery_id is None else str(step.delivery_id)
    state = next((state for state in _WORST if state in states), StepState.IDLE)
    title = f"{node.name}: {word(state.value)}" + (f", {note}" if note else "")
    label = _cut(node.name, _NAME)
    return GraphStep(*place, node.name, label, state.value, word(state.value), _cut(note, _NOTE), title, delivery)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
