"""The test harness for users' own tests, used as they would use it."""

import pytest

from holdfast import NotFound, Step
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audit
from holdfast.stores.queries.query import Filter, deliveries, runs
from holdfast.testing.harness import Harness
from tests.testing.conftest import OrderPlaced, Shop


async def test_what_was_published_is_found_by_its_fields(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    await shop.hf.publish(OrderPlaced(2, "bob@example.com"), conn=None)
    assert holdfast.assert_published(OrderPlaced, order_id=1).type == "order.placed"
    assert len(holdfast.published(OrderPlaced)) == 2


async def test_an_assertion_that_fails_shows_what_was_published(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    with pytest.raises(AssertionError, match=r"(?s)OrderPlaced with .*3.*order.placed .*ada@example.com"):
        holdfast.assert_published(OrderPlaced, order_id=3)


async def test_an_enqueued_job_is_found_by_its_arguments(holdfast: Harness, shop: Shop) -> None:
    await shop.remind.enqueue("ada", times=2)
    holdfast.assert_enqueued(shop.remind, user="ada", times=2)
    with pytest.raises(AssertionError):
        holdfast.assert_enqueued(shop.remind, user="bob")


async def test_draining_travels_through_retry_waits(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    with holdfast.fail("billing", ConnectionError("no route"), times=2):
        await holdfast.drain()
    assert shop.attempts == [3]
    assert holdfast.statuses("billing") == [Status.DELIVERED]


async def test_failures_beyond_the_budget_end_as_a_dead_letter(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    with holdfast.fail("billing", ConnectionError, times=9):
        await holdfast.drain()
    assert shop.billed == []
    assert holdfast.statuses("billing") == [Status.FAILED]


async def test_a_crash_uses_an_attempt_and_is_taken_over(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    with holdfast.crash("billing"):
        await holdfast.drain()
    assert shop.attempts == [2]
    (listed,) = shop.hf.store.run_sync(deliveries(Filter()))
    recorded = shop.hf.store.run_sync(runs(listed.delivery.id))
    assert [(run.outcome, run.error) for run in recorded] == [("lease_expired", "worker lease expired")]


async def test_a_lost_lease_refuses_the_outcome_and_the_delivery_runs_again(holdfast: Harness, shop: Shop) -> None:
    await shop.hf.publish(OrderPlaced(1, "ada@example.com"), conn=None)
    with holdfast.lose_lease("billing"):
        await holdfast.drain()
    assert shop.attempts == [1, 2]
    assert holdfast.statuses("billing") == [Status.DELIVERED]


async def test_plain_functions_fail_on_command_too(holdfast: Harness, shop: Shop) -> None:
    await shop.remind.enqueue("ada", times=3)
    with holdfast.fail("remind", TimeoutError):
        await holdfast.drain()
    assert shop.billed == [3]


async def test_a_delayed_job_is_due_when_the_clock_has_moved(holdfast: Harness, shop: Shop) -> None:
    await shop.remind.using(delay="1h").enqueue("ada", times=5)
    (before,) = shop.hf.store.run_sync(deliveries(Filter()))
    holdfast.clock.advance("1h")
    (after,) = shop.hf.store.run_sync(deliveries(Filter()))
    assert (before.delivery.run_at - after.delivery.run_at).total_seconds() == pytest.approx(3600, abs=1)
    await holdfast.drain()
    assert shop.billed == [5]


async def test_each_test_has_a_separate_store(holdfast: Harness, shop: Shop) -> None:
    assert holdfast.published(OrderPlaced) == []
    assert shop.hf.store.run_sync(audit()) == []


async def test_failing_an_unknown_consumer_says_so(holdfast: Harness) -> None:
    with pytest.raises(NotFound, match="nobody"), holdfast.fail("nobody", ValueError):
        pass


async def test_a_workflow_runs_to_its_end_through_sleeps_retries_and_waits(holdfast: Harness, shop: Shop) -> None:
    flow = shop.hf.workflow("flow")

    @flow.step
    async def nap(ctx: Step) -> str:
        await ctx.sleep("30d")
        late: str | None = await ctx.wait("never", str, timeout="1d")
        return f"{await ctx.wait('approved', str)}, {late}"

    @flow.step(after=nap)
    async def tell(nap: str) -> str:
        return nap

    with holdfast.fail("flow/tell", ConnectionError, times=2):
        assert await holdfast.run_workflow(flow, signals={"approved": "by ada"}) == "by ada, None"
    holdfast.assert_published("workflow.done", workflow="flow")
    with pytest.raises(AssertionError, match=r"has not ended: nap is waiting, tell is idle"):
        await holdfast.run_workflow(flow)
