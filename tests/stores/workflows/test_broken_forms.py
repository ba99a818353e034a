"""Forms of the statements that broke when the design of workflows was attacked, next to the form that holds."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.stores.connections.connection import Psycopg, run_on
from holdfast.stores.deliveries.settle import complete
from holdfast.stores.operation import Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.workflows import advance as advancing
from holdfast.stores.workflows.advance import advance, advance_completed, complete_step
from holdfast.stores.workflows.wait import Suspension, send_signal, suspend
from tests.stores.concurrency.query_hook import before_each_query
from tests.stores.workflows.run_steps import claim_steps, end, events, finish_steps, started, steps_of
from tests.support.builders import claim_of, fresh_id, sql, until_one_waits

HOUR = timedelta(hours=1)

ONE_STATEMENT = """
with r as (
  update holdfast.workflow_run set signals = signals + 1 where id = %(run)s and status = 'running' returning id),
i as (
  insert into holdfast.workflow_signal (id, run_id, name, payload) select %(id)s, r.id, 'go', '1' from r returning id)
update holdfast.delivery d set run_at = now()
from i, holdfast.workflow_step w
where w.run_id = %(run)s and w.signal = 'go' and w.done_at is null
  and d.id = w.delivery_id and d.status = 'pending' and d.run_at > now()
"""


async def signal_while_a_step_suspends(store: PostgresStore, send: Callable[[Any], object]) -> None:
    """The signal waits for the lock of its run until the suspension has committed; then the step must be due."""
    (run,) = await started(store)
    (claimed,) = await claim_steps(store)
    wait = Suspension(run, "a/wait:go", 0, claimed.id, claimed.fence, 0, "go", HOUR)
    with psycopg.connect(store.conninfo) as suspending:
        assert run_on(suspend("w1", [wait]), store.dialect, Psycopg(suspending)) == {claimed.id}
        thread = threading.Thread(target=send, args=(run,))
        thread.start()
        until_one_waits(store)
    thread.join(30)
    assert [one.id for one in await claim_steps(store)] == [claimed.id]


async def test_a_signal_in_two_statements_wakes_a_step_whose_suspension_it_waited_for(
    postgres_store: PostgresStore,
) -> None:
    await signal_while_a_step_suspends(
        postgres_store, lambda run: postgres_store.run_sync(send_signal(fresh_id(), run, "go", "1"))
    )


@pytest.mark.long
async def test_a_signal_in_one_statement_does_not_see_the_suspension_that_it_waited_for(
    postgres_store: PostgresStore,
) -> None:
    def send(run: Any) -> None:
        with psycopg.connect(postgres_store.conninfo, autocommit=True) as connection:
            connection.execute(ONE_STATEMENT, {"run": run, "id": fresh_id()})

    with pytest.raises(AssertionError):
        await signal_while_a_step_suspends(postgres_store, send)


async def advance_in_opposite_orders(store: PostgresStore) -> list[BaseException]:
    """The first batch stops at a run that is held, and the second one begins with the last run of the first."""
    first, second, held = sorted(await started(store, 3))
    claims = {claimed.message_id: claimed for claimed in await claim_steps(store)}
    errors: list[BaseException] = []

    def settle(*runs: Any) -> None:
        batch = advance("w1", [end(claims[run]) for run in runs], events(), wait=True)
        with psycopg.connect(store.conninfo) as connection:
            connection.execute("set deadlock_timeout = '50ms'")
            try:
                run_on(batch, store.dialect, Psycopg(connection))
            except psycopg.Error as error:
                errors.append(error)

    with psycopg.connect(store.conninfo) as holding:
        holding.execute("select 1 from holdfast.workflow_run where id = %s for update", (held,))
        threads = [threading.Thread(target=settle, args=runs) for runs in ((first, held, second), (second, first))]
        for waiting, thread in enumerate(threads, start=1):
            thread.start()
            until_one_waits(store, waiting)
        holding.rollback()
        for thread in threads:
            thread.join(30)
    return errors


async def test_batches_that_are_sorted_by_run_do_not_deadlock(postgres_store: PostgresStore) -> None:
    assert await advance_in_opposite_orders(postgres_store) == []


@pytest.mark.long
async def test_batches_that_are_not_sorted_deadlock(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advancing, "sorted", lambda ends, key: list(ends), raising=False)
    (error,) = await advance_in_opposite_orders(postgres_store)
    assert isinstance(error, psycopg.errors.DeadlockDetected)


async def test_a_handler_at_repeatable_read_completes_its_step_and_does_not_advance_the_run(
    postgres_store: PostgresStore,
) -> None:
    """Its snapshot is older than the end of the other side of the join, so an advance in its transaction must fail."""
    store = postgres_store
    (run,) = await started(store)
    await finish_steps(store, await claim_steps(store))
    left, right = await claim_steps(store)
    with psycopg.connect(store.conninfo) as handler:
        handler.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        handler.execute("select 1")
        await finish_steps(store, [right])
        with pytest.raises(psycopg.errors.SerializationFailure):
            run_on(advance("w1", [end(left)], events()), store.dialect, Psycopg(handler))
    with psycopg.connect(store.conninfo) as handler:
        handler.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        handler.execute("select 1")
        # As another transaction that changes the run in the meantime.
        sql(store, f"update {{hf}}workflow_run set signals = signals + 1 where id = '{run}'")
        completion = complete_step(complete(claim_of(left), HOUR), end(left))
        run_on(completion, store.dialect, Psycopg(handler))
    assert "d" not in await steps_of(store, run)
    assert (await store.run(advance_completed(run, "b", 0, str(end(left).next), "shop", 0, events()))).settled
    assert (await steps_of(store, run))["d"] == "pending"


async def test_a_result_of_one_megabyte_is_sent_as_a_separate_parameter(store: Store) -> None:
    """In an array each of its characters is escaped, which took 91 ms."""
    await started(store)
    (claimed,) = await claim_steps(store)
    result = '"' + "x" * 2**20 + '"'
    queries: list[Query] = []
    done = await store.run(
        before_each_query(advance("w1", [end(claimed, result)], events()), lambda query: queries.append(query))
    )
    assert done.settled == {claimed.id}
    (step, stored) = (query for query in queries if query.name in ("advance", "store_result"))
    assert step.batches["steps"]["result"] == [None]
    assert stored.values["result"] == result
    assert sql(store, "select length(cast(result as text)) from {hf}workflow_step where name = 'a'") == [(len(result),)]
