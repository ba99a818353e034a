"""Changes from the console: each happens once, with the user as the actor."""

import asyncio
import re
from html import unescape
from uuid import UUID

import httpx2
import pytest

from holdfast.core.change import Deliver
from holdfast.core.circuit import CircuitState
from holdfast.core.delivery import Status
from holdfast.core.flow import FlowSettings
from holdfast.interfaces.console.actions import ACTIONS
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import PlanState, StoredPlan
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.groups.group import NewGroup, NewMember, start_group
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.console.conftest import ClientAs, post
from tests.console.shop import BROKEN, WORKER
from tests.support.builders import claim_all, fresh_id, job, outcome
from tests.support.flow import furnish_keys

BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


async def preview(client: httpx2.AsyncClient, **form: str) -> str:
    """Previews a bulk action; returns the plan's id."""
    answer = await post(client, "/plans", **form)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].rpartition("/")[2]


async def ended(ops: Operations, id: str) -> StoredPlan:
    """Returns the plan when it has ended. The console executes it."""
    async with asyncio.timeout(30):
        while (plan := await ops.plan(UUID(id))).state is not PlanState.DONE:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return plan


@BOTH
async def test_a_group_is_previewed_replayed_and_reported_exactly(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    group = (await ops.failure_groups())[0]
    assert group.fingerprint
    async with client_as("operator") as client:
        id = await preview(client, action="replay", group=group.fingerprint, consumer=group.consumer)
        shown = (await client.get(f"/ops/plans/{id}")).text
        assert f"{BROKEN} deliveries would be" in shown
        assert f"<strong>{BROKEN}</strong> for stock" in shown
        assert len(await ops.deliveries(Filter(dead=True, consumers=("stock",)))) == BROKEN
        refused = await post(client, "/plans/start", id=id)
        assert "enter a reason" in refused.text
        assert (await post(client, "/plans/start", id=id, reason="shelf is back", generation="43")).status_code == 303
        plan = await ended(ops, id)
        report = (await client.get(f"/ops/plans/{id}")).text
    assert (plan.done, plan.left, dict(plan.skipped), plan.started_by) == (BROKEN, 0, {}, "ada")
    assert f"<strong>{BROKEN}</strong> replayed" in report
    assert 43 in {one.delivery.generation for one in await ops.deliveries(Filter(consumers=("stock",)), limit=1000)}
    assert not await ops.deliveries(Filter(dead=True, consumers=("stock",)))


@BOTH
async def test_a_replay_that_two_operators_start_at_once_runs_once(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    async with client_as("operator") as ada, client_as("operator", name="grace") as grace:
        id = await preview(ada, action="replay", consumer="stock")
        answers = await asyncio.gather(
            *(post(one, "/plans/start", id=id, reason="fixed in 43") for one in (ada, grace, ada, grace))
        )
        plan = await ended(ops, id)
    assert sorted(answer.status_code for answer in answers) == [303, 409, 409, 409]
    message = next(unescape(answer.text) for answer in answers if answer.status_code == 409)
    assert f"started by {plan.started_by}" in message
    assert plan.done == BROKEN
    histories = [
        len(one.delivery.failure_history) for one in await ops.deliveries(Filter(consumers=("stock",)), limit=100)
    ]
    assert sum(histories) == BROKEN


@ONE
async def test_a_preview_names_the_pauses_that_would_hold_it(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    await ops.pause_consumer("stock", actor="grace")
    await ops.pause_queue("warehouse", actor="grace")
    async with client_as("operator") as ada:
        text = (await ada.get(f"/ops/plans/{await preview(ada, action='replay', consumer='stock')}")).text
        other = (await ada.get(f"/ops/plans/{await preview(ada, action='replay', consumer='billing')}")).text
    assert "consumer stock is paused" in text
    assert "queue warehouse is paused" in text
    assert "is paused" not in other


@ONE
async def test_plans_that_are_started_while_another_runs_are_executed_too(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    async with client_as("operator") as client:
        ids = [await preview(client, action="replay", consumer=consumer) for consumer in ("stock", "billing", "stock")]
        await asyncio.gather(*(post(client, "/plans/start", id=id, reason="r") for id in ids))
        plans = [await ended(ops, id) for id in ids]
    assert sorted(plan.done for plan in plans) == [0, 4, BROKEN]


@ONE
async def test_deliveries_that_changed_after_the_preview_are_skipped_and_named(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    async with client_as("operator") as client:
        id = await preview(client, action="discard", consumer="stock", limit="10")
        moved = (await ops.deliveries(Filter(dead=True, consumers=("stock",)), limit=100))[-1].delivery.id
        await ops.replay([moved], actor="grace")
        await post(client, "/plans/start", id=id, reason="test orders")
        plan = await ended(ops, id)
        page = unescape((await client.get(f"/ops/plans/{id}?items=skipped")).text)
    assert plan.done == 9
    assert "pending: it waits to be run (replayed by grace)" in page
    assert str(moved) in page


@ONE
async def test_one_delivery_is_replayed_discarded_or_cancelled_from_its_page(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    dead = [one.delivery.id for one in await ops.deliveries(Filter(dead=True, consumers=("billing",)))]
    pending = (await ops.deliveries(Filter(consumers=("welcome",)), limit=1))[0].delivery.id
    async with client_as("operator") as client:
        for action, id in (("replay", dead[0]), ("discard", dead[1]), ("cancel", pending)):
            page = (await client.get(f"/ops/deliveries/{id}")).text
            assert f'name="action" value="{action}"' in page
            plan = await preview(client, action=action, ids=str(id))
            await post(client, "/plans/start", id=plan, reason="because")
            assert (await ended(ops, plan)).done == 1
        for state, id in (("replayed", dead[0]), ("discarded", dead[1])):
            assert str(id) in (await client.get(f"/ops/dead?state={state}&consumer=billing")).text
    states = [(await ops.delivery(id)).listed.delivery for id in (dead[0], dead[1], pending)]
    assert [one.discarded_at is not None for one in states] == [False, True, True]
    assert [one.status.value for one in states] == ["pending", "failed", "failed"]


@ONE
async def test_only_an_admin_reruns_a_delivered_delivery(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    done = (await ops.deliveries(Filter(statuses=(Status.DELIVERED,)), limit=1))[0].delivery.id
    async with client_as("operator") as client:
        assert 'name="rerun"' not in (await client.get(f"/ops/deliveries/{done}")).text
        assert (await post(client, "/plans", action="replay", ids=str(done), rerun="yes")).status_code == 403
        plan = await ops.plan(UUID(await preview(client, action="replay", ids=str(done))))
        assert (plan.total, plan.left) == (1, 0)  # skipped without rerun
    async with client_as("admin") as client:
        assert 'name="rerun"' in (await client.get(f"/ops/deliveries/{done}")).text
        id = await preview(client, action="replay", ids=str(done), rerun="yes")
        assert "Their effects may be applied twice" in (await client.get(f"/ops/plans/{id}")).text
    async with client_as("operator") as client:
        assert (await post(client, "/plans/start", id=id, reason="again")).status_code == 403
        assert (await ops.plan(UUID(id))).state.value == "ready"


@ONE
async def test_after_a_sample_the_plan_leads_to_the_rest_of_its_group(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    group = max(await ops.failure_groups(), key=lambda one: one.count)
    async with client_as("operator") as client:
        id = await preview(client, action="replay", group=str(group.fingerprint), consumer=group.consumer, limit="2")
        await post(client, "/plans/start", id=id, reason="a sample")
        await ended(ops, id)
        page = unescape((await client.get(f"/ops/plans/{id}")).text)
        assert f"{group.count - 2} more matched" in page
        (link,) = re.findall(r'href="([^"]*)">show this failure group', page)
        rest = unescape((await client.get(link)).text)
    assert f"Preview replay of {group.count - 2}" in rest


@ONE
async def test_a_plan_is_paused_resumed_and_abandoned(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    async with client_as("operator") as client:
        id = await preview(client, action="replay")
        await ops.start_plan(UUID(id), actor="grace", reason="r")
        assert (await post(client, "/plans/pause", id=id)).status_code == 303
        assert (await ops.plan(UUID(id))).state is PlanState.PAUSED
        assert (await post(client, "/plans/pause", id=id)).status_code == 409
        assert (await post(client, "/plans/abandon", id=id)).status_code == 303
        assert (await post(client, "/plans/resume", id=id)).status_code == 409
        second = await preview(client, action="replay")
        await ops.start_plan(UUID(second), actor="grace", reason="r")
        await ops.pause_plan(UUID(second), actor="grace")
        await post(client, "/plans/resume", id=second)
        assert (await ended(ops, second)).done == BROKEN + 4


@BOTH
async def test_every_other_change_does_what_it_says_and_is_audited(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    (hook,) = await ops.webhooks()
    await furnish_keys(shop)
    queues = {"mail": FlowSettings(limit=3).text}
    await shop.run(register([Declaration("push", flow=FlowSettings(limit=3).text)], [], 0, (), queues))
    members = [NewMember(job(), 0, 0)]
    group = await shop.run(start_group(NewGroup(fresh_id(), "a job", None, members), Fanout(), own=True))
    steps = [
        ("/job-groups/cancel", {"name": str(group.id)}, "cancel"),
        ("/queues/pause", {"name": "payments"}, "pause"),
        ("/queues/resume", {"name": "payments"}, "resume"),
        ("/consumers/pause", {"name": "billing"}, "pause"),
        ("/consumers/resume", {"name": "billing"}, "resume"),
        ("/consumers/unblock", {"name": "search"}, "unblock"),
        ("/consumers/limit", {"name": "push", "limit": "5"}, "limit"),
        ("/queues/limit", {"name": "mail", "limit": "5"}, "limit"),
        ("/consumers/pause-key", {"name": "initech", "consumer": "sync"}, "pause-key"),
        ("/consumers/resume-key", {"name": "initech", "consumer": "sync"}, "resume-key"),
        ("/schedules/pause", {"name": "nightly_report"}, "pause"),
        ("/schedules/resume", {"name": "nightly_report"}, "resume"),
        ("/schedules/run", {"name": "nightly_report"}, "run"),
        ("/schedules/put", {"name": "push:7", "job": "push", "args": '{"n": "<7>"}', "every": "1h"}, "put"),
        ("/schedules/remove", {"name": "push:7"}, "remove"),
        ("/breakers/reset", {"name": "partner"}, "reset"),
        ("/breakers/trip", {"name": "partner", "duration": "5m"}, "trip"),
        ("/webhooks/disable", {"name": hook.id}, "disable"),
        ("/webhooks/enable", {"name": hook.id}, "enable"),
        ("/keys/release", {"name": "checkout-0", "scope": "user:7"}, "release"),
    ]
    assert {path for path, _, _ in steps} == {path for path in ACTIONS if not path.startswith(("/plans", "/workflows"))}
    async with client_as("admin") as client:
        for path, form, action in steps:
            answer = await post(client, path, **form, reason=f"why {path}")
            assert answer.status_code == 303, (path, answer.text)
            newest = (await ops.audit(limit=1))[0]
            assert (newest.actor, newest.action) == ("ada", action), path
            assert newest.reason == f"why {path}" or path == "/consumers/unblock"
            assert (await client.get(answer.headers["location"])).status_code == 200
        assert (await post(client, "/keys/release", name="checkout-1", scope="user:7")).status_code == 409
        assert (await post(client, "/keys/release", name="checkout-1", scope="user:7", force="yes")).status_code == 303
    (breaker,) = await ops.breakers()
    assert breaker.state is CircuitState.OPEN


@ONE
@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/plans", {"action": "explode"}),
        ("/plans", {"action": "replay", "limit": "0"}),
        ("/plans", {"action": "replay", "ids": "nonsense"}),
        ("/plans/start", {"id": "x", "reason": "r"}),
        ("/queues/pause", {}),
        ("/queues/pause", {"name": "no-such-queue"}),
        ("/consumers/pause", {"name": "\x00"}),
        ("/webhooks/disable", {"name": "x"}),
        ("/breakers/trip", {"name": "partner", "duration": "long"}),
        ("/schedules/put", {"name": "s", "job": "billing", "every": "often"}),
        ("/schedules/put", {"name": "s", "job": "no-such-job", "every": "1h"}),
        ("/schedules/put", {"name": "s", "job": "billing", "every": "1h", "args": "{"}),
    ],
)
async def test_an_invalid_form_changes_nothing(
    client_as: ClientAs, ops: Operations, path: str, form: dict[str, str]
) -> None:
    async with client_as("admin") as client:
        answer = await post(client, path, **form)
    assert answer.status_code in (400, 404)
    assert "Internal error" not in answer.text
    assert await ops.audit() == []


@ONE
async def test_a_viewer_sees_no_button(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    dead = (await ops.deliveries(Filter(dead=True), limit=1))[0].delivery.id
    async with client_as("viewer") as client:
        for path in (
            "/",
            "/dead",
            "/groups",
            f"/deliveries/{dead}",
            "/queues",
            "/consumers",
            "/schedules",
            "/webhooks",
            "/keys",
        ):
            page = (await client.get(f"/ops{path}")).text
            assert not re.search(r'<form[^>]*method="post"', page), path


@BOTH
async def test_selected_rows_are_previewed_and_no_others(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    dead = [one.delivery.id for one in await ops.deliveries(Filter(dead=True, consumers=("stock",)), limit=3)]
    async with client_as("operator") as client:
        page = (await client.get("/ops/dead")).text
        assert all(f'form="selected" name="ids" value="{id}"' in page for id in dead)
        token = client.cookies.get("holdfast_console", "")
        form = [("csrf", token), ("selected", "yes"), ("action", "discard"), *(("ids", str(id)) for id in dead)]
        body = "&".join(f"{name}={value}" for name, value in form)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = await client.post("/ops/plans", content=body, headers=headers)
        nothing = await post(client, "/plans", selected="yes", action="discard")
    plan = UUID(answer.headers["location"].rpartition("/")[2])
    assert {one.id for one in await ops.plan_items(plan)} == set(dead)
    assert nothing.status_code == 400
    assert "no delivery is selected" in nothing.text
    assert len(await ops.plans()) == 1


@BOTH
async def test_only_operators_can_select_rows(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        for path in ("/ops/dead", "/ops/deliveries"):
            assert "checkbox" not in (await client.get(path)).text


@BOTH
async def test_a_sample_is_replayed_first_and_then_the_rest(
    client_as: ClientAs, shop: Store, ops: Operations, store: Store
) -> None:
    group = (await ops.failure_groups())[0]
    assert group.fingerprint
    async with client_as("operator") as client:
        id = await preview(client, action="replay", group=group.fingerprint, consumer="stock", limit="10")
        await post(client, "/plans/start", id=id, reason="a sample first")
        await ended(ops, id)
        waiting = (await client.get(f"/ops/plans/{id}")).text
        await store.run(
            settle(
                WORKER, [outcome(one, Deliver()) for one in await claim_all(store, WORKER, generation=42, limit=1000)]
            )
        )
        await ops.follow_plans()
        page = (await client.get(f"/ops/plans/{id}")).text
        form = page[page.index("Preview replay of the rest") - 900 :].partition("</form>")[0]
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[form.rindex("<form") :]))
        rest = await preview(client, **{name: unescape(value) for name, value in fields.items()})
    assert "Preview replay of the rest" not in waiting
    assert "when these deliveries have finished" in waiting
    assert (await ops.plan(UUID(rest))).total == BROKEN - 10
