"""Runs of a small graph, step by step, without an engine: a, then b and c, then d; m is manual."""

from collections.abc import Sequence
from uuid import UUID

from holdfast.core.message import Address
from holdfast.core.workflows.graph import Exhausted, Graph, Node
from holdfast.core.workflows.names import start_type, step_consumer, step_of
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.advance import Advanced, StepEnd, advance, next_steps
from holdfast.stores.workflows.definition import DeclaredWorkflow, with_workflows
from holdfast.stores.workflows.event import WorkflowEvents
from holdfast.stores.workflows.run import NewRun, start_runs
from tests.support.builders import all_deliveries, claim_all, fresh_id, message, sql

GRAPH = Graph(
    "flow", 1, [Node("a"), Node("b", ("a",)), Node("c", ("a",), exhausted=Exhausted.BLOCK), Node("d", ("b", "c"))]
)
STEPS = [step_consumer("flow", name) for name in GRAPH.nodes]


def events() -> WorkflowEvents:
    return WorkflowEvents(lambda count: [fresh_id() for _ in range(count)])


def new_run(key: str | None = None) -> NewRun:
    start = message(start_type("flow"), {}, key=key, addressed=[Address(consumer="flow/a")])
    start = start._replace(key_scope=None if key is None else start.type)
    return NewRun(start, "flow", 1, len(GRAPH.last))


async def declare(store: Store) -> None:
    declared = register([Declaration(name) for name in STEPS], [], 0)
    await store.run(with_workflows(declared, [DeclaredWorkflow(GRAPH, ())]))


async def started(store: Store, count: int = 1) -> list[UUID]:
    """Starts runs and returns their ids."""
    await declare(store)
    return [one.id for one in await store.run(start_runs([new_run() for _ in range(count)]))]


async def claim_steps(store: Store, worker: str = "w1", steps: Sequence[str] = STEPS) -> list[Claimed]:
    return sorted(await claim_all(store, worker, consumers=steps), key=lambda claimed: claimed.consumer)


def end(claimed: Claimed, result: str = "1") -> StepEnd:
    """A claimed step as completed."""
    step = step_of(claimed.consumer)
    next = next_steps(claimed.message_id, GRAPH, step, 0)
    return StepEnd(claimed.message_id, step, 0, claimed.id, claimed.fence, result, next, "shop", 0)


async def finish_steps(store: Store, claims: Sequence[Claimed], worker: str = "w1") -> Advanced:
    return await store.run(advance(worker, [end(claimed) for claimed in claims], events()))


async def finish_all(store: Store, rounds: int = 3) -> None:
    for _ in range(rounds):
        await finish_steps(store, await claim_steps(store))


async def steps_of(store: Store, run: UUID) -> dict[str, str]:
    """The steps of a run that have a delivery, with its status."""
    return {
        step_of(d.consumer): d.status.value
        for d in await all_deliveries(store)
        if d.message_id == run and d.consumer in STEPS
    }


def run_row(store: Store, run: UUID, column: str = "status") -> object:
    ((value,),) = sql(store, f"select {column} from {{hf}}workflow_run where id = '{run}'")
    return value
