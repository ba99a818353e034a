"""Steps that start other work and wait for it: one run of a step per item, and child runs."""

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from holdfast.core.errors import ConfigurationError, WorkflowFailed
from holdfast.core.events import payload
from holdfast.core.workflows.names import item_name, map_join, memo_name, step_consumer
from holdfast.engine.workflows.declaration import WorkflowDeclaration
from holdfast.stores.operation import Operation
from holdfast.stores.workflows.definition import definition
from holdfast.stores.workflows.items import item_results, start_items
from holdfast.stores.workflows.run import (
    NewRun,
    Parent,
    RunOutcome,
    RunStatus,
    StepResult,
    child_of,
    run_outcome,
    start_runs,
)

if TYPE_CHECKING:
    from holdfast.engine.workflows.step import Step

MAX_ITEMS = 100_000

Requests = Generator[Operation[Any], Any, Any]


class ChildWorkflow(Protocol):
    """A workflow whose runs a step can start; the app implements it."""

    @property
    def name(self) -> str: ...

    @property
    def declaration(self) -> WorkflowDeclaration: ...

    def new_child(self, parent: Parent, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewRun:
        """A run with a parent. Each run of the step uses the same key, so the child is started once."""
        ...


def map_items(step: "Step", function: Callable[..., Any], items: Iterable[object]) -> Requests:
    """Runs a mapped step once per item and returns the results in order; suspends the step until all are done."""
    spec = step.spec.workflow.mapped_step(function)
    call = step.next_call(f"map:{spec.name}")
    join = map_join(step.name, spec.name, call)
    name = item_name(spec.name, step.name, call)
    known = step.memo(join)
    if known is None:
        texts = [payload.encode(item) for item in items]
        if not texts:
            return []
        if len(texts) > MAX_ITEMS:
            raise ConfigurationError(
                f"ctx.map({spec.name}) got {len(texts):,} items; give at most {MAX_ITEMS:,}, for example by grouping "
                "several into one"
            )
        consumer = step_consumer(spec.workflow.name, spec.name)
        yield start_items(step.claim, step.run_id, step.epoch, join, name, consumer, texts)
    if known is None or not known.done:
        step.suspend((join, 0), None, None, stored=False)
    results: list[StepResult] = yield item_results(step.run_id, name)
    return step.read_all(spec.name, spec.returns, results)


def run_child(step: "Step", workflow: ChildWorkflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Requests:
    """Starts a child run, the same one in every run of the step, and returns its result; suspends the step until then."""
    call = step.next_call(f"child:{workflow.name}")
    wait = memo_name(step.name, f"child:{workflow.name}")
    parent = Parent(step.run_id, wait, call)
    # After a retry of this run, a child that is done or runs is kept, and one that failed is started again.
    child: UUID | None = (yield child_of(parent)) if step.epoch else None
    if child is None:
        epoch = f"@{step.epoch}" if step.epoch else ""
        run = workflow.new_child(parent, f"{step.run_id}/{wait}#{call}{epoch}", args, kwargs)
        (published,) = yield start_runs([run])
        child = published.id
    outcome: RunOutcome = yield run_outcome(child)
    if outcome.status.is_active:
        # The end of the child raises the counter of this run, so that a child that ends before the suspension is noticed.
        step.suspend((wait, call), None, None)
    if outcome.status is not RunStatus.DONE:
        raise WorkflowFailed(outcome.name, child, outcome.status.value, outcome.reason)
    return (yield from result_of(outcome, workflow.declaration))


def result_of(outcome: RunOutcome, workflow: WorkflowDeclaration) -> Requests:
    """The result of a run that is done: that of its last step, or of each by name if it has several."""
    graph = yield definition(outcome.name, outcome.version)
    results: dict[str, object] = {}
    for step in () if graph is None else graph.last:
        text, version = outcome.results.get(step, (None, None))
        results[step] = workflow.upcasts.read(step, text, version or outcome.version)
    return next(iter(results.values())) if len(results) == 1 else results
