"""The graph of a workflow: which step waits for which, and what follows a completed step."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b

from holdfast.core.errors import ConfigurationError

MAX_STEPS = 500


class Exhausted(StrEnum):
    """What a step becomes when its attempts are used up."""

    DEAD = "dead"  # the run fails, and is compensated if it has undo steps
    BLOCK = "block"  # the run waits until an operator replays the step


@dataclass(frozen=True, slots=True)
class Node:
    """A step in a graph. `after` are the steps that it waits for; a `manual` one also waits for its trigger."""

    name: str
    after: tuple[str, ...] = ()
    manual: bool = False
    exhausted: Exhausted = Exhausted.DEAD
    undo: bool = False
    mapped: bool = False
    """The step runs only through `ctx.map`, once per item, and is not part of the order of steps."""
    takes: tuple[str, ...] | None = None
    """The arguments of `start` that it and its undo function take; None if an older release stored it."""
    needs: tuple[str, ...] = ()
    """The arguments in `takes` that have no default."""

    @property
    def joins(self) -> int:
        """How many completions it waits for; the trigger of a manual step is one of them."""
        return len(self.after) + self.manual


class Graph:
    """The steps of one version of a workflow. Raises `ConfigurationError` for unknown steps and cycles."""

    def __init__(self, workflow: str, version: int, nodes: Iterable[Node]) -> None:
        self.workflow, self.version = workflow, version
        self.nodes = _by_name(workflow, nodes)
        self._following: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for before in node.after:
                if before not in self.nodes:
                    raise ConfigurationError(
                        f"workflow {workflow}: step {node.name} comes after {before!r}, which is not a step; "
                        f"{nearest_step(before, self.nodes)}"
                    )
                if node.mapped or self.nodes[before].mapped:
                    raise ConfigurationError(
                        f"workflow {workflow}: step {node.name} comes after {before}, but a mapped step has no place in "
                        "the order; wait for it with ctx.map in the step that starts it"
                    )
                self._following[before].append(node.name)
        self.order = self._sorted()

    @cached_property
    def first(self) -> tuple[str, ...]:
        """The steps that a start makes due."""
        return tuple(node.name for node in self.nodes.values() if not node.joins and not node.mapped)

    @cached_property
    def last(self) -> tuple[str, ...]:
        """The steps that no other step waits for; the run is done when all of them are."""
        return tuple(name for name, node in self.nodes.items() if not self._following[name] and not node.mapped)

    @cached_property
    def hash(self) -> str:
        """A digest of the steps and their order: two graphs with the same digest advance runs alike."""
        structure = sorted((n.name, sorted(n.after), n.manual, n.mapped) for n in self.nodes.values())
        return blake2b(json.dumps(structure).encode(), digest_size=16).hexdigest()

    def next_joins(self, name: str) -> Sequence[tuple[str, int]]:
        """The steps that wait for this one, and the number of completions that each waits for."""
        return self._next_joins.get(name, ())

    @cached_property
    def _next_joins(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        return {
            name: [(next, self.nodes[next].joins) for next in following] for name, following in self._following.items()
        }

    def ancestors(self, name: str) -> set[str]:
        """All steps that are done before this one starts."""
        return _reached(name, lambda one: self.nodes[one].after)

    def descendants(self, name: str) -> set[str]:
        """All steps that start only after this one."""
        return _reached(name, lambda one: self._following[one])

    def to_json(self) -> list[dict[str, object]]:
        """The steps as JSON values; `from_json` restores them."""
        return [
            {
                "name": node.name,
                "after": list(node.after),
                "manual": node.manual,
                "exhausted": node.exhausted.value,
                "undo": node.undo,
                "mapped": node.mapped,
                **({} if node.takes is None else {"takes": list(node.takes), "needs": list(node.needs)}),
            }
            for node in self.nodes.values()
        ]

    @classmethod
    def from_json(cls, workflow: str, version: int, stored: Iterable[Mapping[str, object]]) -> Graph:
        """The graph that any release stored; an unknown field is ignored, a missing one gets its default."""
        return cls(
            workflow,
            version,
            (
                Node(
                    str(one["name"]),
                    tuple(str(before) for before in _list(one.get("after"))),
                    bool(one.get("manual")),
                    Exhausted(str(one.get("exhausted", Exhausted.DEAD))),
                    bool(one.get("undo")),
                    bool(one.get("mapped")),
                    tuple(str(name) for name in _list(one["takes"])) if "takes" in one else None,
                    tuple(str(name) for name in _list(one.get("needs"))),
                )
                for one in stored
            ),
        )

    def _sorted(self) -> tuple[str, ...]:
        """The steps, sorted so that each comes after the steps that it waits for."""
        left = {name: len(node.after) for name, node in self.nodes.items()}
        ready = [name for name, count in left.items() if not count]
        ordered: list[str] = []
        while ready:
            ordered.append(name := ready.pop(0))
            for following in self._following[name]:
                left[following] -= 1
                if not left[following]:
                    ready.append(following)
        if len(ordered) < len(self.nodes):
            circle = ", ".join(sorted(name for name, count in left.items() if count))
            raise ConfigurationError(
                f"workflow {self.workflow}: steps {circle} wait for each other, so none of them can start; remove a "
                "step from one of their after= lists"
            )
        return tuple(ordered)


def nearest_step(name: str, known: Iterable[str], what: str = "steps") -> str:
    """The remedy for an unknown step name."""
    names = list(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]}?"
    return f"its {what} are {', '.join(names)}" if names else "it has no steps yet; declare that step first"


def _by_name(workflow: str, nodes: Iterable[Node]) -> dict[str, Node]:
    named: dict[str, Node] = {}
    for node in nodes:
        if node.name in named:
            raise ConfigurationError(
                f"workflow {workflow} has two steps named {node.name}; give one of them another name="
            )
        if len(set(node.after)) < len(node.after):
            raise ConfigurationError(
                f"workflow {workflow}: step {node.name} names a step twice in after=; name it once"
            )
        named[node.name] = node
    if len(named) > MAX_STEPS:
        raise ConfigurationError(
            f"workflow {workflow} has {len(named)} steps; use at most {MAX_STEPS}, and ctx.map for many items"
        )
    return named


def _reached(start: str, neighbors: Callable[[str], Iterable[str]]) -> set[str]:
    found: set[str] = set()
    left = list(neighbors(start))
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += neighbors(name)
    return found


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
