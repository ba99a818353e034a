"""Definitions: the graph of each version of a workflow, pinned in the store for its runs."""

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from holdfast.core.errors import ConfigurationError
from holdfast.core.workflows.graph import Graph
from holdfast.stores.operation import Operation, Query, Steps, operation


class DeclaredWorkflow(NamedTuple):
    """A workflow in the code: its graph, and the older versions whose runs it can continue."""

    graph: Graph
    compatible_with: tuple[int, ...]


@operation(reads=True)
def definition(workflow: str, version: int) -> Steps[Graph | None]:
    """The stored graph of a version; None if it was never declared."""
    return (yield from read_definition(workflow, version))


@operation(reads=True)
def newest_definition(workflow: str) -> Steps[Graph | None]:
    """The stored graph of the newest version; None if the workflow was never declared."""
    rows = yield Query("definitions", {"names": [workflow]})
    if not rows:
        return None
    _, version, _, graph, _ = rows[-1]
    return Graph.from_json(workflow, version, orjson.loads(str(graph)))


def read_definition(workflow: str, version: int) -> Steps[Graph | None]:
    """`definition` in the transaction of another operation."""
    rows = yield Query("definition", {"workflow": workflow, "version": version})
    return Graph.from_json(workflow, version, orjson.loads(str(rows[0][0]))) if rows else None


def with_workflows(registration: Operation[bool], declared: Sequence[DeclaredWorkflow]) -> Operation[bool]:
    """A registration that also stores the graphs of these workflows.

    Raises `ConfigurationError` if a version has runs with another graph, or if a step of a compatible version is missing.
    """
    return Operation(lambda: _register(registration, declared)) if declared else registration


def _register(registration: Operation[bool], declared: Sequence[DeclaredWorkflow]) -> Steps[bool]:
    changed = yield from registration.start()
    rows = yield Query("definitions", {"names": [one.graph.workflow for one in declared]})
    stored = {
        (str(workflow), version): (str(hash), orjson.loads(str(graph)), bool(used))
        for workflow, version, hash, graph, used in rows
    }
    for graph, compatible in declared:
        known = stored.get((graph.workflow, graph.version))
        if known is not None and known[0] != graph.hash and known[2]:
            old = Graph.from_json(graph.workflow, graph.version, known[1])
            raise ConfigurationError(_another_graph(graph, old))
        text = orjson.dumps(graph.to_json()).decode()
        if known is None or known[1] != graph.to_json():
            values = {"workflow": graph.workflow, "version": graph.version, "hash": graph.hash, "graph": text}
            yield Query("save_definition", values)
        for version in compatible:
            if older := stored.get((graph.workflow, version)):
                _check_compatible(graph, Graph.from_json(graph.workflow, version, older[1]))
    return changed


def _another_graph(graph: Graph, stored: Graph) -> str:
    added = sorted(graph.nodes.keys() - stored.nodes.keys())
    removed = sorted(stored.nodes.keys() - graph.nodes.keys())
    differences = [
        *([f"new: {', '.join(added)}"] if added else []),
        *([f"gone: {', '.join(removed)}"] if removed else []),
    ]
    what = "; ".join(differences) or "the same steps in another order"
    return (
        f"workflow {graph.workflow} version {graph.version} has runs with another graph ({what}); raise version= to "
        f"{graph.version + 1}, and name {graph.version} in compatible_with= if the code can continue its runs"
    )


def _check_compatible(graph: Graph, older: Graph) -> None:
    if gone := sorted(older.nodes.keys() - graph.nodes.keys()):
        raise ConfigurationError(
            f"workflow {graph.workflow} version {graph.version} says compatible_with={older.version}, but that version has "
            f"the steps {', '.join(gone)}, which the code lacks; keep these steps, or "
            f"remove {older.version} from compatible_with"
        )
