"""Workflows: named steps that run in order, durably. A run is its start message, a step is a delivery of it."""

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.app.declaration.flow_options import check_key_field
from holdfast.app.declaration.handler_options import HandlerOptions, check_flag, refuse_option
from holdfast.app.jobs.job import MakesJob
from holdfast.app.workflows.workflow_run import WorkflowRun
from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.flow import positive
from holdfast.core.key import check_key
from holdfast.core.message import Address, NewMessage
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.workflows.graph import Exhausted
from holdfast.core.workflows.names import check_workflow_name, start_type, step_consumer
from holdfast.core.workflows.upcasts import ResultUpcast
from holdfast.engine.handlers.handler import Handler, Kind, check_function, takes_context
from holdfast.engine.workflows.declaration import StepSpec, WorkflowDeclaration
from holdfast.engine.workflows.step import Step
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.runtime import Runtime
from holdfast.stores.messages.publish import Published
from holdfast.stores.workflows.run import NewRun, Parent

if TYPE_CHECKING:
    from holdfast.app.declaration.router import Router

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
U = TypeVar("U", bound=ResultUpcast)

MAIN = "main"
_UNCHANGED = object()
_STEP_OPTIONS = frozenset(
    {"queue", "priority", "retry", "timeout", "dead_on", "retry_on", "block_on", "park_on", "classify", "limit", "rate"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How one run is started."""

    conn: Any = AMBIENT
    key: str | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    deadline: timedelta | None = None


class Workflow:
    """Steps that run in order, each with its own attempts, queue and dead letters.

    Examples:
        >>> from holdfast import Holdfast, Step
        >>> hf = Holdfast("sqlite:///shop.db")
        >>> order = hf.workflow("order")
        >>> @order.step
        ... async def reserve(ctx: Step, sku: str) -> int:
        ...     return 1
        >>> @order.step(after=reserve)
        ... async def ship(ctx: Step, sku: str, reserve: int) -> str:
        ...     return f"{reserve} of {sku}"

    A parameter that is named like a step gets the result of that step; all others are arguments of `start`.
    """

    def __init__(self, router: "Router", declaration: WorkflowDeclaration, options: StartOptions | None = None) -> None:
        self._router, self.declaration = router, declaration
        self._options = options or StartOptions()
        self.sync = SyncWorkflow(self)

    @property
    def name(self) -> str:
        """The name of the workflow, which must never change."""
        return self.declaration.name

    @overload
    def __call__(self, function: Callable[Concatenate[Step, P], R], /) -> "FunctionWorkflow[P, R]": ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> "FunctionWorkflow[P, R]": ...
    def __call__(self, function: Any, /) -> "FunctionWorkflow[Any, Any]":
        """Makes a function the workflow: it has one step, called main, which waits, sleeps and remembers with its context."""
        self._add_step(function, MAIN, (), {})
        return FunctionWorkflow(self._router, self.declaration, self._options)

    @overload
    def step(self, function: F, /) -> F: ...
    @overload
    def step(
        self,
        *,
        after: object = ...,
        undo: Callable[..., Any] | None = ...,
        exhausted: str = ...,
        manual: bool = ...,
        mapped: bool = ...,
        deadline: Duration | None = ...,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]: ...
    def step(  # type: ignore[misc] # mypy does not match an unpacked TypedDict with itself here
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        after: object = (),
        undo: Callable[..., Any] | None = None,
        exhausted: str = Exhausted.DEAD,
        manual: bool = False,
        mapped: bool = False,
        deadline: Duration | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Any:
        """Declares a step. It stays an ordinary function.

        It starts once the steps in `after` are done, and a `manual` one also needs its trigger. `exhausted` says what
        happens when its attempts are used up: `"dead"` fails the run, `"block"` holds it until the step is replayed.
        When the run fails, the `undo` functions of all started steps are called, the latest step first. A `mapped`
        step runs only through `ctx.map`: its first parameter gets the item. `deadline` is how long after its first
        start the step must be done, including all attempts and waits; when it has passed, `exhausted` applies.
        """
        before = _sequence(after)
        policy = _exhausted(self.name, exhausted)
        check_flag("manual", manual)
        limit = self._deadline(deadline, options)
        if check_flag("mapped", mapped) and (before or manual or undo is not None or limit is not None):
            raise ConfigurationError(
                f"workflow {self.name}: a mapped step runs only through ctx.map; leave after=, manual=, undo= and deadline= "
                "out, or give them to the step that calls ctx.map"
            )
        for option in options:
            if option not in _STEP_OPTIONS and option != "name":
                refuse_option(
                    f"@{self.name}.step",
                    option,
                    (*_STEP_OPTIONS, "after", "undo", "exhausted", "manual", "mapped", "deadline", "name"),
                )

        def decorate(function: F) -> F:
            name = options.get("name", getattr(function, "__name__", None))
            self._add_step(
                function,
                str(name),
                before,
                options,
                policy,
                undo=undo,
                manual=manual,
                mapped=mapped,
                deadline=limit,
            )
            return function

        return decorate if function is None else decorate(function)

    def upcast(self, step: object, *, from_version: int) -> Callable[[U], U]:
        """Declares the conversion of stored results of a step from `from_version` of the workflow to the next version.

        A result that an older version stored is converted when a later step, `run.result()` or a parent run reads it. Declare
        it in the deploy that changes the result; a version in which the result did not change needs none.
        """

        def decorate(function: U) -> U:
            self.declaration.add_upcast(step, from_version, function)
            return function

        return decorate

    def command(self, *, key: str, **options: Unpack[HandlerOptions]) -> MakesJob:
        """A command to runs of this workflow: a call that is stored first, and that a worker executes once per key.

        Its first parameter is `run`, the id of the run, which the key contains. A route only stores it:
        `await approve.using(conn=session).enqueue(run.id, by="ada")`. The function changes the run with `workflow.run(run)`.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            name = options.get("name", f"{self.name}:{getattr(function, '__name__', function)}")
            _check_command(name, function, key)
            named: HandlerOptions = {**options, "name": name}
            return self._router.command(key=key, **named)(function)

        return decorate

    def using(
        self,
        *,
        conn: Any = _UNCHANGED,
        key: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        deadline: Duration | None = None,
    ) -> "Workflow":
        """The same workflow with options for `start`: a transaction, a key, a delay, a deadline for the whole run."""
        return Workflow(self._router, self.declaration, self._with(conn, key, delay, run_at, deadline))

    async def start(self, *args: Any, **kwargs: Any) -> WorkflowRun:
        """Stores a run with the values that its steps take; workers run it once it is committed.

        The same key returns the same run. Without a connection it commits at once in a separate transaction.
        """
        runtime, run = self._new_run(args, kwargs)
        (published,) = await runtime.start_runs([run], self._options.conn, f"{self.name}.start")
        return self._handle(published)

    def new_child(self, parent: Parent, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewRun:
        """A run with a parent, for `ctx.child`. Each run of the step uses the same key, so the child is started once."""
        _, run = self.using(conn=None, key=key)._new_run(args, kwargs)
        return run._replace(parent=parent)

    def run(self, id: UUID | str) -> WorkflowRun:
        """The handle of an existing run; raises `NotFound` for a text that is not an id."""
        try:
            known = UUID(str(id))
        except ValueError:
            raise NotFound("run", id, "an id is a UUID; `holdfast workflows list` shows the ids") from None
        return WorkflowRun(lambda: self._router._runtime, self.declaration, known)

    def _start_sync(self, *args: Any, **kwargs: Any) -> WorkflowRun:
        runtime, run = self._new_run(args, kwargs)
        (published,) = runtime.start_runs_sync([run], self._options.conn, f"{self.name}.start")
        return self._handle(published)

    def _handle(self, published: Published) -> WorkflowRun:
        return WorkflowRun(lambda: self._router._runtime, self.declaration, published.id, created=published.created)

    def _new_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Runtime, NewRun]:
        runtime, options = self._router._runtime, self._options
        graph = self.declaration.graph
        parameters = self.declaration.parameters
        arguments = parameters.bind(args, kwargs)
        type = start_type(self.name)
        message: NewMessage = runtime.producer.build(
            type,
            arguments,
            key=options.key,
            key_scope=type,
            addressed=[self._address(runtime.handlers[step_consumer(self.name, step)]) for step in graph.first],
        )
        if runtime.producer.validate and parameters.typed:
            parameters.read(message.payload)
        return runtime, NewRun(message, self.name, graph.version, len(graph.last), deadline=options.deadline)

    def _address(self, handler: Handler) -> Address:
        return Address(
            consumer=handler.name,
            queue=handler.queue,
            priority=handler.priority,
            delay=self._options.delay,
            run_at=self._options.run_at,
        )

    def _with(
        self,
        conn: Any,
        key: str | None,
        delay: Duration | None,
        run_at: datetime | None,
        deadline: Duration | None,
    ) -> StartOptions:
        given: dict[str, Any] = {
            "key": None if key is None else check_key(key),
            "delay": None if delay is None else to_timedelta(delay, name="delay"),
            "run_at": run_at,
            "deadline": None if deadline is None else to_timedelta(deadline, name="deadline"),
        }
        changed = {name: value for name, value in given.items() if value is not None}
        if conn is not _UNCHANGED:
            changed["conn"] = conn
        return replace(self._options, **changed)

    def _add_step(
        self,
        function: Callable[..., Any],
        name: str,
        after: Sequence[object],
        options: HandlerOptions,
        exhausted: Exhausted = Exhausted.DEAD,
        *,
        undo: Callable[..., Any] | None = None,
        manual: bool = False,
        mapped: bool = False,
        deadline: timedelta | None = None,
    ) -> None:
        check_function(f"step {name} of workflow {self.name}", function)
        if undo is not None:
            check_function(f"undo= of step {name} of workflow {self.name}", undo)
        spec = self.declaration.add(
            function,
            name,
            after,
            manual=manual,
            exhausted=exhausted,
            undo=undo is not None,
            mapped=mapped,
            deadline=deadline,
        )
        self._declare(function, spec, options)
        if undo is not None:
            self._declare(undo, self.declaration.add_undo(undo, name), options)

    def _deadline(self, deadline: Duration | None, options: HandlerOptions) -> timedelta | None:
        limit = positive("deadline", deadline, "leave it out for no limit")
        timeout = options.get("timeout")
        if limit is not None and timeout is not None and to_timedelta(timeout, name="timeout") > limit:
            raise ConfigurationError(
                f"workflow {self.name}: timeout {timeout!r} of an attempt is longer than deadline {deadline!r} of all attempts "
                "and waits; give a shorter timeout="
            )
        return limit

    def _declare(self, function: Callable[..., Any], spec: StepSpec, options: HandlerOptions) -> None:
        named: HandlerOptions = {**options, "name": step_consumer(self.name, spec.name)}
        handler = self._router._handler(function, Kind.STEP, named)
        check_key_field(handler.name, handler.flow, self.declaration.parameters.names)
        self._router._add_handler(replace(handler, step=spec))


class FunctionWorkflow(Workflow, Generic[P, R]):
    """A workflow that is one function. `start` takes the parameters of the function, which type checkers check."""

    if TYPE_CHECKING:

        async def start(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowRun:
            """Stores a run; workers run the function once it is committed."""
            ...

    def using(
        self,
        *,
        conn: Any = _UNCHANGED,
        key: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        deadline: Duration | None = None,
    ) -> "FunctionWorkflow[P, R]":
        """`Workflow.using` with the parameters of the function."""
        return FunctionWorkflow(self._router, self.declaration, self._with(conn, key, delay, run_at, deadline))


class SyncWorkflow:
    """The blocking methods of a workflow."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow

    def start(self, *args: Any, **kwargs: Any) -> WorkflowRun:
        """`Workflow.start`, blocking."""
        return self._workflow._start_sync(*args, **kwargs)


def new_declaration(name: str, version: int, compatible_with: object) -> WorkflowDeclaration:
    """A workflow without steps; raises `ConfigurationError` for invalid versions."""
    check_workflow_name(name)
    versions = tuple(compatible_with) if isinstance(compatible_with, Sequence) and not isinstance(compatible_with, str) else (compatible_with,)  # fmt: skip
    for one in (version, *versions):
        if isinstance(one, bool) or not isinstance(one, int) or one < 1:
            raise ConfigurationError(f"workflow {name}: {one!r} is not a version; give whole numbers from 1")
    if wrong := [one for one in versions if one >= version]:
        raise ConfigurationError(
            f"workflow {name} version {version}: compatible_with names {wrong[0]}, which is not older; name older versions"
        )
    return WorkflowDeclaration(name, version, versions)


def _check_command(name: str, function: Callable[..., Any], key: str) -> None:
    names = list(inspect.signature(function).parameters)[1 if takes_context(function) else 0 :]
    if names[:1] != ["run"]:
        raise ConfigurationError(
            f"command {name}: its first parameter must be `run: UUID`, the id of the run that it is sent to"
        )
    if "{run}" not in key:
        raise ConfigurationError(
            f"command {name}: key {key!r} is the same for all runs; name the run, for example '{{run}}:approve:v1'"
        )


def _sequence(after: object) -> tuple[object, ...]:
    return tuple(after) if isinstance(after, list | tuple | set | frozenset) else (after,)


def _exhausted(workflow: str, given: str) -> Exhausted:
    try:
        return Exhausted(given)
    except ValueError:
        near = difflib.get_close_matches(str(given), [one.value for one in Exhausted], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "give 'dead' or 'block'"
        raise ConfigurationError(f"workflow {workflow}: exhausted is {given!r}; {hint}") from None
