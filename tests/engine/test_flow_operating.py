"""What operators change in flow control takes effect in running workers."""

import asyncio
from typing import Any

from holdfast import Holdfast, Limit, Queue, Rate, RetryPolicy
from holdfast.ops.queries.flow_keys import Hold
from tests.engine.test_concurrency import Gauge
from tests.support.apps import MakeApp
from tests.support.worker import drain, eventually, working


async def publish(hf: Holdfast, keys: str) -> None:
    for number, key in enumerate(keys):
        await hf.publish("order.placed", {"k": key, "n": number}, conn=None)


async def test_a_raised_limit_is_reached_and_a_lowered_one_holds_without_a_restart(hf: Holdfast) -> None:
    gauge = Gauge()

    @hf.consumer("order.placed", name="ship", limit=Limit(1, by="k"))
    async def ship(payload: Any) -> None:
        with gauge:
            await asyncio.sleep(0.05)

    await publish(hf, "a" * 60)
    async with working(hf):
        await eventually(lambda: gauge.total >= 2)
        assert gauge.most == 1
        await hf.ops.limit_consumer("ship", limit=4, actor="ada", reason="faster")
        await eventually(lambda: gauge.most == 4)
        await hf.ops.limit_consumer("ship", reset=True, actor="ada")
        await eventually(lambda: gauge.total == 60)
    assert gauge.most == 4


async def test_a_paused_key_waits_and_continues_when_it_is_resumed(hf: Holdfast) -> None:
    done: list[str] = []

    @hf.consumer("order.placed", name="ship", order_by="k")
    async def ship(payload: Any) -> None:
        done.append(payload["k"])

    await publish(hf, "ab")
    await hf.ops.pause_key("ship", "a", actor="ada")
    async with working(hf):
        await eventually(lambda: done == ["b"])
        await publish(hf, "ab")
        await eventually(lambda: done == ["b", "b"])
        state = (await hf.ops.keys("ship")).keys[0]
        assert (state.key, state.waiting, state.hold) == ("a", 2, Hold.PAUSED)
        await hf.ops.resume_key("ship", "a", actor="ada")
        await eventually(lambda: done == ["b", "b", "a", "a"])


async def test_a_dead_head_is_shown_and_its_replay_lets_the_key_continue(hf: Holdfast) -> None:
    done: list[int] = []
    broken = True

    @hf.consumer("order.placed", name="ship", order_by="k", retry=RetryPolicy.none())
    async def ship(payload: Any) -> None:
        if broken and payload["n"] == 0:
            raise ValueError("no stock")
        done.append(payload["n"])

    await publish(hf, "aaa")
    async with working(hf):
        blocked = await eventually(lambda: _blocked(hf))
        assert (blocked.waiting, done) == (2, [])
        broken = False
        await hf.ops.replay([blocked.blocked_by], actor="ada", reason="fixed")
        await eventually(lambda: done == [0, 1, 2])
    assert (await hf.ops.keys("ship")).keys == ()


async def _blocked(hf: Holdfast) -> Any:
    found = (await hf.ops.keys("ship")).keys
    return found[0] if found and found[0].hold is Hold.DEAD_LETTER else None


async def test_a_rate_is_shown_with_its_next_token(hf: Holdfast) -> None:
    done: list[str] = []

    @hf.consumer("order.placed", name="ship", rate=Rate("2/1h", by="k"))
    async def ship(payload: Any) -> None:
        done.append(payload["k"])

    await publish(hf, "aaab")
    async with working(hf):
        await eventually(lambda: sorted(done) == ["a", "a", "b"])
        (state,) = (await hf.ops.keys("ship")).keys
        assert (state.key, state.hold, state.waiting) == ("a", Hold.RATE, 1)
        assert state.next_at is not None
        await hf.ops.limit_consumer("ship", rate="10/1h", actor="ada")
        await eventually(lambda: sorted(done) == ["a", "a", "a", "b"])


async def test_the_limit_of_a_queue_changes_without_a_restart(make_app: MakeApp) -> None:
    hf = make_app(queues=[Queue("mail", limit=Limit(1))])
    gauge = Gauge()

    @hf.consumer("order.placed", name="ship", queue="mail")
    async def ship(payload: Any) -> None:
        with gauge:
            await asyncio.sleep(0.03)

    await publish(hf, "a" * 30)
    async with working(hf):
        await eventually(lambda: gauge.total >= 2)
        assert gauge.most == 1
        await hf.ops.limit_queue("mail", limit=3, actor="ada")
        await eventually(lambda: gauge.most == 3)
        await eventually(lambda: gauge.total == 30)
    (queue,) = [one for one in await hf.ops.queues() if one.name == "mail"]
    assert queue.flow is not None
    assert (queue.flow.limit, queue.flow.declared_limit) == (3, 1)


async def test_a_worker_until_idle_ends_while_a_key_is_blocked(hf: Holdfast) -> None:
    @hf.consumer("order.placed", name="ship", order_by="k", retry=RetryPolicy.none())
    async def ship(payload: Any) -> None:
        raise ValueError("no stock")

    await publish(hf, "aa")
    await drain(hf)
    (state,) = (await hf.ops.keys("ship")).keys
    assert (state.hold, state.waiting) == (Hold.DEAD_LETTER, 1)
