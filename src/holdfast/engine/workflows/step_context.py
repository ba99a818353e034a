"""What all steps have: their run, their results, and how they complete. A mapped step has only its item in addition."""

import contextlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.events import payload
from holdfast.core.events.validation import fitting_value, stored_value, stored_values
from holdfast.core.values.arguments import requires_own_conn
from holdfast.core.workflows.graph import Graph
from holdfast.engine.handlers.context import Context, SyncContext
from holdfast.engine.workflows.deadline import RunningDeadline
from holdfast.engine.workflows.declaration import StepSpec
from holdfast.stores.operation import Operation
from holdfast.stores.workflows.advance import NO_NEXT, StepEnd, complete_step, items_join, next_steps
from holdfast.stores.workflows.run import LoadedRun, StepResult, StepRow
from holdfast.stores.workflows.wait import Suspension


class StepContext(Context):
    """One step of a workflow: its run, its arguments and its completion."""

    keeps_result = True

    __slots__ = (
        "_calls",
        "_graph",
        "_item",
        "_loaded",
        "_max_bytes",
        "_memos",
        "deadline",
        "result",
        "spec",
        "suspension",
    )

    def __init__(
        self,
        *args: Any,
        spec: StepSpec,
        loaded: LoadedRun,
        graph: Graph,
        deadline: RunningDeadline | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.spec, self._loaded, self._graph, self.deadline = spec, loaded, graph, deadline
        self._memos = {(row.name, row.occurrence): row for row in loaded.rows}
        self.result: str | None = None
        """The result as JSON text, once the function has returned."""
        self.suspension: Suspension | None = None
        """What the step waits for, once it waits."""

    @property
    def run_id(self) -> UUID:
        """The id of the run, which is the id of its start message."""
        return self.message_id

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.spec.name

    @property
    def workflow(self) -> str:
        """The name of the workflow."""
        return self._loaded.name

    @property
    def epoch(self) -> int:
        """How many times the run had been retried from a step when this step started."""
        return self._loaded.epoch

    @property
    def key(self) -> str:
        """An idempotency key for effects of this step: the same in every attempt, retry and replay."""
        return f"{self.run_id}:{self.spec.name}"

    @property
    def sync(self) -> "SyncStepContext":
        """The same methods for a plain function."""
        return SyncStepContext(self)

    @requires_own_conn
    async def complete(self, *, conn: Any, key: str | None = None, result: object = None) -> None:
        """Marks this step done with a `result` in the handler's transaction: effect and outcome commit together.

        The value that the function returns afterwards is ignored. See `Context.complete` for the errors and the time limit.
        """
        self.result = payload.encode(result)
        await super().complete(conn=conn, key=key)

    def end(self) -> StepEnd:
        """This step as completed, with the steps that wait for it."""
        run = self.invocation
        return StepEnd(
            self.run_id,
            *self._row,
            run.id,
            run.fence,
            self.result,
            self._next(),
            run.source,
            run.generation,
            self.spec.workflow.upcasts.stored_version(self.spec.name, self._loaded.version),
        )

    @property
    def _row(self) -> tuple[str, int]:
        """The name and the number of the row that gets the result."""
        return self.spec.name, 0

    def arguments(self) -> dict[str, Any]:
        """The arguments of the function: arguments of `start`, and results of steps."""
        given = payload.decode(self.invocation.payload)
        named = self.spec.inputs.take(given if isinstance(given, dict) else {})
        for step, annotation in self.spec.results.items():
            row = self._memos.get((step, 0))
            if row is not None and row.done:
                named[step] = self.read(step, annotation, row.result, row.version)
            elif step in self._graph.nodes:
                named[step] = None
            else:
                remedy = (
                    f"; run {self.run_id} is of version {self._graph.version}, which has no step {step}: allow None"
                )
                named[step] = stored_value(None, annotation, f"the result of step {step}", remedy)
        return named

    def returned(self, result: object) -> None:
        """Stores the return value as the result, unless the function has called `ctx.complete`."""
        if self.suspension is not None:
            raise ConfigurationError(
                f"step {self.spec.name} caught the exception that suspends it and returned; let that exception propagate: "
                "write `except Exception` instead of a bare `except`"
            )
        if not self.completing:
            self.result = payload.encode(result)

    def _next(self) -> str:
        if self.spec.is_undo:
            own = self._memos.get((self.spec.name, 0))
            return NO_NEXT if own is None or own.next is None else own.next
        return next_steps(self.run_id, self._graph, self.spec.name, self._loaded.epoch)

    def _completion(self, key: str | None) -> Operation[None]:
        return complete_step(super()._completion(key), self.end())

    def read_all(self, step: str, annotation: Any, results: Sequence[StepResult]) -> list[Any]:
        """`read` for many results of one step: all texts are decoded and checked at once, which takes a tenth of the time."""
        texts = [one.text for one in results if one.text is not None and one.version is None]
        upcasts = self.spec.workflow.upcasts
        if len(texts) == len(results) and not upcasts.changes(step, self._loaded.version):
            with contextlib.suppress(ValueError):
                return stored_values(texts, annotation)
        # One by one, for a result of another form, and for the error of the first that does not fit.
        return [self.read(step, annotation, *one) for one in results]

    def read(self, step: str, annotation: Any, text: str | None, version: int | None) -> Any:
        """The stored result of a step in the form of this code. `version` is the form that was stored, if it is not the run's."""
        form = version or self._loaded.version
        workflow = self.spec.workflow
        value = workflow.upcasts.read(step, text, form)
        remedy = (
            f". If its type has changed since, raise version= of workflow {workflow.name} and convert older results with "
            f"@{workflow.name}.upcast({step!r}, from_version={form}); then retry the run"
        )
        return fitting_value(value, annotation, f"the result of step {step}", remedy)


class MappedStep(StepContext):
    """One item of `ctx.map` as the function of a mapped step sees it.

    It has no waits and remembers nothing: an item is one delivery, and its result is all that is stored of it. Wait in the
    step that calls `ctx.map`, or start a child run there.
    """

    __slots__ = ("_item",)

    def __init__(self, *args: Any, loaded: LoadedRun, **kwargs: Any) -> None:
        super().__init__(*args, loaded=loaded, **kwargs)
        self._item: StepRow = next(row for row in loaded.rows if row.item is not None)

    @property
    def item(self) -> int:
        """The number of the item, from 0."""
        return self._item.occurrence

    @property
    def key(self) -> str:
        """An idempotency key for effects of this item: the same in every attempt, retry and replay."""
        return f"{super().key}:{self._item.name.partition('@')[2]}:{self._item.occurrence}"

    def arguments(self) -> dict[str, Any]:
        named = super().arguments()
        if self.spec.item is not None:
            named[self.spec.item] = payload.decode(self._item.item or "null")
        return named

    @property
    def _row(self) -> tuple[str, int]:
        return self._item.name, self._item.occurrence

    def _next(self) -> str:
        return items_join(self.run_id, self._item.name)


class SyncStepContext(SyncContext):
    """The blocking methods of all steps."""

    __slots__ = ()

    @requires_own_conn
    def complete(self, *, conn: Any, key: str | None = None, result: object = None) -> None:
        """`StepContext.complete`, blocking."""
        context = self._context
        assert isinstance(context, StepContext)
        context.result = payload.encode(result)
        super().complete(conn=conn, key=key)
