"""Retry, fork, cancel, signal and replay of runs, each as one operation of a store."""

from uuid import UUID

import pytest

from holdfast.core.errors import Refused
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.core.workflows.graph import Graph, Node
from holdfast.core.workflows.names import COMMANDS, start_type, step_consumer, step_of
from holdfast.stores.admin.bulk_actions import steps_of_ended_runs
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.protocol import Store
from holdfast.stores.workflows.advance import advance, next_steps
from holdfast.stores.workflows.definition import DeclaredWorkflow, with_workflows
from holdfast.stores.workflows.failure import cancel_run, trigger_step
from holdfast.stores.workflows.fork import Origin, fork_run
from holdfast.stores.workflows.retry import retry_run
from holdfast.stores.workflows.run import start_runs
from holdfast.stores.workflows.wait import send_signal
from tests.stores.workflows.run_steps import claim_steps, end, events, new_run, run_row
from tests.support.builders import all_deliveries, fresh_id, message, sql

WIDE = Graph(
    "flow",
    1,
    [Node("a", undo=True), Node("b", ("a",)), Node("c", ("a",)), Node("d", ("b", "c")), Node("m", ("d",), manual=True)],
)
STEPS = [step_consumer("flow", name) for name in WIDE.nodes]


async def wide_run(store: Store) -> UUID:
    """A run of a, then b and c, then d, then m by hand."""
    declared = register([Declaration(name) for name in STEPS], [], 0)
    await store.run(with_workflows(declared, [DeclaredWorkflow(WIDE, ())]))
    (run,) = await store.run(start_runs([new_run()]))
    return run.id


async def finish(store: Store, *names: str) -> None:
    """Claims everything that is due and completes these steps; the others stay claimed."""
    claimed = await claim_steps(store, steps=STEPS)
    done = [one for one in claimed if step_of(one.consumer) in names]
    ends = [end(one)._replace(next=next_steps(one.message_id, WIDE, step_of(one.consumer), 0)) for one in done]
    await store.run(advance("w1", ends, events()))


async def due(store: Store, run: UUID) -> list[str]:
    """The steps of a run that a worker can claim."""
    return sorted(
        step_of(d.consumer) for d in await all_deliveries(store) if (d.message_id, d.status) == (run, "pending")
    )


def fork_start(key: str | None = None) -> NewMessage:
    type = start_type("flow")
    return message(type, {}, key=key)._replace(key_scope=type)


async def fail(store: Store, run: UUID, status: str = "failed") -> None:
    sql(store, f"update {{hf}}workflow_run set status = '{status}' where id = '{run}'")


async def test_a_retry_runs_only_what_failed_and_what_follows_it_again(store: Store) -> None:
    run = await wide_run(store)
    await finish(store, "a")
    with pytest.raises(Refused, match="without a failed step"):
        await store.run(retry_run(run, None, events()))
    await finish(store)
    sql(store, "update {hf}delivery set status = 'failed', locked_by = null where consumer = 'flow/c'")
    assert await store.run(retry_run(run, None, events())) == ["c", "d", "m"]
    assert await due(store, run) == ["c"]
    assert run_row(store, run, "epoch") == 1


async def test_a_retry_from_a_done_step_forgets_its_result_and_builds_the_join_again(store: Store) -> None:
    run = await wide_run(store)
    await finish(store, "a")
    await finish(store, "b", "c")
    await finish(store, "d")
    sql(store, f"update {{hf}}workflow_run set deadline = started_at, reason = 'late' where id = '{run}'")
    assert await store.run(retry_run(run, "b", events())) == ["b", "d", "m"]
    assert (run_row(store, run, "deadline"), run_row(store, run, "reason")) == (None, None)
    assert await due(store, run) == ["b"]
    rows = sql(store, f"select name, waiting from {{hf}}workflow_step where run_id = '{run}' order by name")
    assert [(str(name), waiting) for name, waiting in rows] == [("a", None), ("c", None), ("d", 1), ("retry:1", None)]


async def test_a_retry_detaches_the_children_of_a_done_step_and_of_no_other(store: Store) -> None:
    run = await wide_run(store)
    await finish(store, "a")
    await finish(store, "b", "c")
    children = [(await store.run(start_runs([new_run()])))[0].id for _ in range(2)]
    for child, step in zip(children, "bc", strict=True):
        sql(
            store,
            f"update {{hf}}workflow_run set parent_run = '{run}', parent_wait = '{step}/child:x' where id = '{child}'",
        )
    await store.run(retry_run(run, "b", events()))
    assert [run_row(store, child, "parent_wait") for child in children] == ["@b/child:x", "c/child:x"]


async def test_a_fork_copies_only_results_of_done_steps_that_were_not_undone(store: Store) -> None:
    run = await wide_run(store)
    await finish(store, "a")
    await finish(store, "b")
    fork = (await store.run(fork_run(fork_start(), Origin(run, "c")))).id
    rows = sql(store, f"select name, waiting, result from {{hf}}workflow_step where run_id = '{fork}' order by name")
    assert [(str(name), waiting, result is None) for name, waiting, result in rows] == [
        ("a", None, False),
        ("b", None, False),
        ("d", 1, True),
        ("start:fork", None, True),
    ]
    assert await due(store, fork) == ["c"]
    assert (run_row(store, fork, "forked_from"), run_row(store, fork, "forked_step")) in (
        (run, "c"),
        (str(run), "c"),
    )
    assert sql(store, f"select count(*) from {{hf}}workflow_step where run_id = '{run}'") == [(3,)]
    assert run_row(store, run, "forked_from") is None
    sql(
        store,
        f"insert into {{hf}}workflow_step (run_id, name, delivery_id) values ('{run}', 'a:undo', '{fresh_id()}')",
    )
    again = (await store.run(fork_run(fork_start(), Origin(run, "c")))).id
    assert await due(store, again) == ["a"]


async def test_a_fork_cannot_begin_after_a_join_that_is_not_done(store: Store) -> None:
    run = await wide_run(store)
    await finish(store, "a")
    await finish(store, "b", "c")
    # The join has a row already.
    with pytest.raises(Refused, match="step d is not done"):
        await store.run(fork_run(fork_start(), Origin(run, "m")))


async def test_a_key_makes_one_fork(store: Store) -> None:
    run = await wide_run(store)
    first, second = [await store.run(fork_run(fork_start("k"), Origin(run, "a"))) for _ in range(2)]
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert await due(store, first.id) == ["a"]
    with pytest.raises(Refused, match="use another key"):
        await store.run(fork_run(fork_start("k"), Origin(first.id, "a")))


async def test_a_signal_and_a_trigger_that_are_applied_twice_count_once(store: Store) -> None:
    run, signal = await wide_run(store), fresh_id()
    assert [await store.run(send_signal(signal, run, "go", "1")) for _ in range(2)] == [True, True]
    assert sql(store, "select count(*) from {hf}workflow_signal") == [(1,)]
    assert [await store.run(trigger_step(run, "m", events())) for _ in range(2)] == [True, False]
    assert sql(store, "select waiting from {hf}workflow_step where name = 'm'") == [(1,)]
    await store.run(cancel_run(run, None, events()))
    assert not await store.run(send_signal(fresh_id(), run, "go", "2"))
    assert sql(store, "select count(*) from {hf}workflow_signal") == [(1,)]


async def test_a_cancellation_leaves_the_report_of_a_child(store: Store) -> None:
    run = await wide_run(store)
    sql(
        store,
        "insert into {hf}delivery (id, message_id, consumer, queue, priority, generation) "
        f"values ('{delivery_id(run, COMMANDS)}', '{run}', '{COMMANDS}', 'default', 1, 0)",
    )
    await store.run(cancel_run(run, None, events()))
    assert await due(store, run) == [step_of(COMMANDS)]


@pytest.mark.parametrize("status", ["running", "compensating", "failed"])
async def test_a_replay_finds_the_steps_of_ended_runs(store: Store, status: str) -> None:
    run = await wide_run(store)
    (step,) = await all_deliveries(store)
    undo, report = delivery_id(run, "flow/a:undo"), delivery_id(run, COMMANDS)
    for id, consumer in ((undo, "flow/a:undo"), (report, COMMANDS)):
        sql(
            store,
            "insert into {hf}delivery (id, message_id, consumer, queue, priority, generation) "
            f"values ('{id}', '{run}', '{consumer}', 'default', 1, 0)",
        )
    await fail(store, run, status)
    found = await store.run(steps_of_ended_runs([step.id, undo, report]))
    assert found == {"running": set(), "compensating": {step.id}, "failed": {step.id, undo}}[status]
