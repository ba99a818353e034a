"""The states of a step, each reached by a run and shown to operators in every front end."""

import re
from datetime import timedelta

from holdfast import Holdfast, RetryPolicy, Step, TerminalError
from holdfast.stores.queries.time_travel import travel
from tests.support.worker import drain
from tests.workflows.test_front_ends import cli, console_of
from tests.workflows.test_operating import states


async def test_each_state_of_a_step_is_reached_and_shown(hf: Holdfast, dsn: str) -> None:
    flow, broken, running = hf.workflow("mission"), {"fetch", "build"}, dict[str, str]()

    async def enter(ctx: Step) -> None:
        running[ctx.name] = states(await hf.ops.workflow_run(ctx.run_id))[ctx.name]

    @flow.step(retry=RetryPolicy.fixed("1h", attempts=5))
    async def fetch(ctx: Step) -> None:
        await enter(ctx)
        if "fetch" in broken:
            raise ValueError("unavailable")

    @flow.step(after=fetch, exhausted="block")
    async def build(ctx: Step) -> None:
        await enter(ctx)
        if "build" in broken:
            raise TerminalError("no plan")

    @flow.step(after=build)
    async def send(ctx: Step) -> None:
        raise TerminalError("no address")

    run = await flow.start()

    async def shown() -> list[str]:
        found = list(states(await hf.ops.workflow_run(run.id)).values())
        table = cli(dsn, "workflows", "show", run.id).stdout
        assert re.findall(r"^(?:fetch|build|send) +(\w+(?: wait)?)", table, re.M) == [
            one.replace("_", " ") for one in found
        ]
        async with console_of(hf) as client:
            page = (await client.get(f"/ops/workflows/{run.id}")).text
        assert re.findall(r'class="step s-(\w+)"', page) == found
        return found

    assert await shown() == ["queued", "idle", "idle"]
    await drain(hf)
    assert await shown() == ["retry_wait", "idle", "idle"]
    broken.remove("fetch")
    await hf.store.run(travel(timedelta(hours=2)))
    await drain(hf)
    assert running == {"fetch": "running", "build": "running"}
    assert await shown() == ["done", "blocked", "idle"]
    broken.remove("build")
    assert await hf.ops.retry_run(run.id, actor="ada")
    assert await shown() == ["done", "replaying", "idle"]
    await drain(hf)
    assert running["build"] == "replaying"
    assert await shown() == ["done", "done", "dead"]
