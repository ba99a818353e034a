"""Declared workflows: the steps of the code, their parameters, and the graph that follows from them."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from holdfast.core.errors import ConfigurationError
from holdfast.core.workflows.graph import Exhausted, Graph, Node, nearest_step
from holdfast.core.workflows.names import check_step_name, is_undo, name_array, undo_of
from holdfast.core.workflows.upcasts import ResultUpcast, ResultUpcasts
from holdfast.engine.handlers.handler import hints_of, result_hint, step_context_name, takes_context
from holdfast.engine.handlers.parameters import Parameters


@dataclass(frozen=True, slots=True, eq=False)
class StepSpec:
    """A step of a workflow and the parameters of its function. A parameter that is named like a step gets that step's result."""

    workflow: "WorkflowDeclaration"
    name: str
    inputs: Parameters
    results: Mapping[str, Any]
    """The annotation of each result that it takes, by step."""
    returns: Any
    item: str | None = None
    """The parameter that gets the item, of a step that runs through `ctx.map`."""
    deadline: timedelta | None = None
    """How long after its first start the step must be done."""
    is_undo: bool = field(init=False)
    stored_results: str = field(init=False)
    """The steps whose stored rows it needs, as `load_steps` takes them."""

    def __post_init__(self) -> None:
        undo = is_undo(self.name)
        object.__setattr__(self, "is_undo", undo)
        object.__setattr__(self, "stored_results", name_array([*self.results, self.name] if undo else self.results))


@dataclass(slots=True, eq=False)
class WorkflowDeclaration:
    """A workflow as declared in code. Steps are added while its module is imported; the graph is derived from them."""

    name: str
    version: int = 1
    compatible_with: tuple[int, ...] = ()
    steps: dict[str, StepSpec] = field(default_factory=dict)
    _functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)
    _inputs: dict[str, tuple[str, inspect.Parameter, Any]] = field(default_factory=dict)
    _graph: Graph | None = None
    _parameters: Parameters | None = None
    upcasts: ResultUpcasts = field(init=False)

    def __post_init__(self) -> None:
        self.upcasts = ResultUpcasts(self.name, self.version)

    @property
    def graph(self) -> Graph:
        """The graph of the declared steps; raises `ConfigurationError` without steps."""
        if self._graph is None:
            if not self._nodes:
                raise ConfigurationError(
                    f"workflow {self.name} has no steps; decorate functions with @{self.name}.step"
                )
            self._graph = Graph(self.name, self.version, self._nodes.values())
            if not self._graph.last:
                raise ConfigurationError(
                    f"workflow {self.name} has only mapped steps; declare a step that calls ctx.map"
                )
        return self._graph

    @property
    def parameters(self) -> Parameters:
        """The parameters of a start: all parameters of steps that are not results."""
        if self._parameters is None:
            given = [parameter for _, parameter, _ in sorted(self._inputs.values(), key=self._position)]
            types = {name: kind for name, (_, _, kind) in self._inputs.items()}
            self._parameters = Parameters(self.name, given, types, "workflow")
        return self._parameters

    def add(
        self,
        function: Callable[..., Any],
        name: str,
        after: Sequence[object],
        *,
        manual: bool = False,
        exhausted: Exhausted = Exhausted.DEAD,
        undo: bool = False,
        mapped: bool = False,
        deadline: timedelta | None = None,
    ) -> StepSpec:
        """Declares a step; raises `ConfigurationError` for one that could not run."""
        check_step_name(self.name, name)
        if name in self._nodes:
            raise ConfigurationError(f"workflow {self.name} has two steps named {name}; give one of them another name=")
        if name in self._inputs:
            raise ConfigurationError(
                f"workflow {self.name}: step {name} is named like a parameter of step {self._inputs[name][0]}, and "
                "that parameter is an argument of start; rename the parameter or the step, or declare the step first "
                "to pass its result"
            )
        before = tuple(self._step_name(f"step {name} comes after", one) for one in after)
        graph = Graph(
            self.name, self.version, [*self._nodes.values(), Node(name, before, manual, exhausted, undo, mapped)]
        )
        spec = replace(self._spec(function, name, graph.ancestors(name), mapped=mapped), deadline=deadline)
        node = _taking(graph.nodes[name], spec)
        self._nodes[name], self.steps[name], self._functions[name] = node, spec, function
        self._graph = self._parameters = None
        return spec

    def add_undo(self, function: Callable[..., Any], step: str) -> StepSpec:
        """Declares the function that undoes a step. It takes results of that step and of those before it."""
        graph = Graph(self.name, self.version, self._nodes.values())
        spec = self._spec(function, undo_of(step), {step, *graph.ancestors(step)})
        self.steps[spec.name] = spec
        self._nodes[step] = _taking(self._nodes[step], spec)
        self._graph = self._parameters = None
        return spec

    def add_upcast(self, step: object, from_version: int, function: ResultUpcast) -> None:
        """Declares the conversion of a step's stored results from a version to the next."""
        self.upcasts.add(self._step_name("upcast of", step), from_version, function)

    def _position(self, given: tuple[str, inspect.Parameter, Any]) -> tuple[bool, bool, bool]:
        """Sort key of a start parameter: required before optional before keyword-only ones, those of mapped steps last."""
        owner, parameter, _ = given
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        is_mapped = owner in self._nodes and self._nodes[owner].mapped
        return by_name, not by_name and parameter.default is not parameter.empty, is_mapped

    def mapped_step(self, function: Callable[..., Any]) -> StepSpec:
        """The mapped step of this function; raises `ConfigurationError` if there is none."""
        for name, known in self._functions.items():
            if known is function and self._nodes[name].mapped:
                return self.steps[name]
        raise ConfigurationError(
            f"workflow {self.name}: ctx.map got {getattr(function, '__name__', function)!r}, which is not a mapped step; "
            f"declare it with @{self.name}.step(mapped=True)"
        )

    def _step_name(self, use: str, given: object) -> str:
        if isinstance(given, str):
            if given not in self._nodes:
                raise ConfigurationError(
                    f"workflow {self.name}: {use} {given!r}, which is not declared above it; "
                    f"{nearest_step(given, self._nodes)}"
                )
            return given
        for name, function in self._functions.items():
            if function is given:
                return name
        raise ConfigurationError(
            f"workflow {self.name}: {use} {getattr(given, '__name__', given)!r}, which is not a step of "
            f"this workflow; decorate it with @{self.name}.step first, or give the name of a step"
        )

    def _spec(
        self, function: Callable[..., Any], name: str, before: Iterable[str], *, mapped: bool = False
    ) -> StepSpec:
        hints = hints_of(function)
        self._check_context(function, name, mapped)
        parameters = list(inspect.signature(function).parameters.values())[1 if takes_context(function) else 0 :]
        item = None
        if mapped:
            if not parameters:
                raise ConfigurationError(
                    f"workflow {self.name}: mapped step {name} takes no parameter for its item; add one"
                )
            item = parameters[0].name
        results: dict[str, Any] = {}
        inputs: list[inspect.Parameter] = []
        for parameter in parameters:
            annotation = hints.get(parameter.name, Any)
            if parameter.name == item:
                continue
            if parameter.name in self._nodes:
                self._check_result(name, parameter.name, annotation, before)
                results[parameter.name] = annotation
            else:
                self._check_input(name, parameter, annotation)
                inputs.append(parameter)
        # Checks the kinds of all parameters before anything is stored.
        Parameters(name, [*parameters], hints, "step")
        for parameter in inputs:
            self._inputs.setdefault(parameter.name, (name, parameter, hints.get(parameter.name, Any)))
        return StepSpec(self, name, Parameters(name, inputs, hints, "step"), results, result_hint(function), item)

    def _check_context(self, function: Callable[..., Any], step: str, mapped: bool) -> None:
        given = step_context_name(function)
        if mapped and given == "Step":
            raise ConfigurationError(
                f"workflow {self.name}: mapped step {step} takes a Step, but an item of ctx.map cannot wait or remember values; "
                "annotate its context as MappedStep"
            )
        if not mapped and given == "MappedStep":
            raise ConfigurationError(
                f"workflow {self.name}: step {step} takes a MappedStep, which only mapped steps get; annotate its context as "
                "Step"
            )

    def _check_result(self, step: str, taken: str, annotation: Any, before: Iterable[str]) -> None:
        if taken not in before:
            raise ConfigurationError(
                f"workflow {self.name}: step {step} takes the result of step {taken}, which does not run before it; add "
                f"{taken} to after=, or rename the parameter"
            )
        returned = self.steps[taken].returns
        if not _fits(returned, annotation):
            raise ConfigurationError(
                f"workflow {self.name}: step {step} takes {taken}: {inspect.formatannotation(annotation)}, but step "
                f"{taken} returns {inspect.formatannotation(returned)}; give both the same type"
            )

    def _check_input(self, step: str, parameter: inspect.Parameter, annotation: Any) -> None:
        if (known := self._inputs.get(parameter.name)) is None:
            if near := difflib.get_close_matches(parameter.name, self._nodes, n=1, cutoff=0.8):
                raise ConfigurationError(
                    f"workflow {self.name}: parameter {parameter.name} of step {step} would be an argument of start; did "
                    f"you mean the result of step {near[0]}? If not, give the parameter a less similar name"
                )
            return
        first, other, kind = known
        if kind != annotation and Any not in (kind, annotation):
            raise ConfigurationError(
                f"workflow {self.name}: step {step} takes {parameter.name}: {inspect.formatannotation(annotation)}, but "
                f"step {first} takes {parameter.name}: {inspect.formatannotation(kind)}; give both the same type"
            )
        if other.default != parameter.default:
            raise ConfigurationError(
                f"workflow {self.name}: parameter {parameter.name} has different defaults in steps {first} and {step}; "
                "give it the same default, or none"
            )


def _taking(node: Node, spec: StepSpec) -> Node:
    """The node with the start arguments of a function added to those that it takes and needs."""
    takes = {*(node.takes or ()), *spec.inputs.names}
    return replace(node, takes=tuple(sorted(takes)), needs=tuple(sorted({*node.needs, *spec.inputs.required})))


_CONTAINERS = {"builtins", "collections.abc"}


def _fits(returned: Any, taken: Any) -> bool:
    """Whether a result may have the type of the parameter, as far as that can be determined."""
    if get_origin(taken) is Annotated:
        taken = get_args(taken)[0]
    if get_origin(returned) is Annotated:
        returned = get_args(returned)[0]
    if Any in (returned, taken) or returned == taken:
        return True
    if get_origin(returned) in (Union, UnionType):
        return all(_fits(one, taken) for one in get_args(returned))
    if get_origin(taken) in (Union, UnionType):
        return any(_fits(returned, one) for one in get_args(taken))
    given, wanted = (NoneType if one is None else get_origin(one) or one for one in (returned, taken))
    if not isinstance(given, type) or not isinstance(wanted, type):
        return True
    if (given, wanted) == (int, float):
        return True
    try:
        if not issubclass(given, wanted):
            return False
    except TypeError:
        # A TypedDict or a protocol, which only a value can be checked against.
        return True
    if given is not wanted and not {given.__module__, wanted.__module__} <= _CONTAINERS:
        # The parameters of a generic class may mean something else in a class that is derived from it.
        return True
    inner = get_args(returned), get_args(taken)
    return len(inner[0]) != len(inner[1]) or all(map(_fits, *inner))
