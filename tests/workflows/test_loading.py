"""Steps that were claimed together wait for one read of their runs, and do not take the slots of other deliveries."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from holdfast import Holdfast, Step
from holdfast.engine.workflows.declaration import StepSpec
from holdfast.engine.workflows.loader import StepLoader
from holdfast.stores.deliveries.claim import Claimed
from tests.support.builders import claim_all
from tests.support.worker import eventually


class HeldStore:
    """A store whose first read waits."""

    def __init__(self, hf: Holdfast) -> None:
        self._store, self.reads, self.free = hf.store, 0, asyncio.Event()

    async def run(self, operation: Any) -> Any:
        self.reads += 1
        if self.reads == 1:
            await self.free.wait()
        return await self._store.run(operation)


async def claimed_steps(hf: Holdfast, count: int) -> tuple[HeldStore, StepLoader, StepSpec, Sequence[Claimed]]:
    """A loader that has begun to read the runs of so many claimed steps."""
    flow = hf.workflow("flow")

    @flow.step
    async def one(ctx: Step) -> None: ...

    for _ in range(count):
        await flow.start()
    claims = await claim_all(hf.store, consumers=["flow/one"])
    store = HeldStore(hf)
    made = StepLoader(cast("Any", store), hf.handlers)
    made.prefetch(claims)
    spec = hf.handlers["flow/one"].step
    assert spec is not None
    return store, made, spec, claims


async def test_steps_of_one_claim_share_a_read(hf: Holdfast) -> None:
    store, made, spec, claims = await claimed_steps(hf, 3)
    ended: list[int] = []
    made.loaded = [lambda: ended.append(made.waiting)]
    loading = asyncio.create_task(made.load(claims[0], spec))
    await asyncio.sleep(0)
    assert (made.waiting, ended) == (1, [])
    store.free.set()
    assert await loading is not None
    assert (made.waiting, ended) == (0, [0])
    assert [await made.load(claimed, spec) is not None for claimed in claims[1:]] == [True, True]
    assert store.reads == 1


async def test_a_read_that_takes_long_keeps_no_slot_from_other_deliveries(hf: Holdfast) -> None:
    store, made, spec, claims = await claimed_steps(hf, 2)
    ended: list[int] = []
    made.loaded = [lambda: ended.append(made.waiting)]
    first = asyncio.create_task(made.load(claims[0], spec))
    await eventually(lambda: ended == [0])
    second = asyncio.create_task(made.load(claims[1], spec))
    await asyncio.sleep(0)
    assert made.waiting == 0
    assert not first.done()
    store.free.set()
    assert await first is not None
    assert await second is not None
