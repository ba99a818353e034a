"""Commands to runs: stored before they are executed, one effect per key."""

from contextlib import closing
from uuid import UUID

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import ConfigurationError, Context, Holdfast, Step
from holdfast.interfaces.drill.provider import Provider
from tests.support.worker import all_of, drain


async def test_a_command_that_is_sent_many_times_makes_one_service_call_and_one_signal(hf: Holdfast) -> None:
    mission = hf.workflow("mission")

    @mission.step
    async def build(ctx: Step) -> str:
        return await ctx.wait("approved", str)

    with closing(Provider()) as provider:
        provider.start()

        @mission.command(key="{run}:approve:v1")
        async def approve(ctx: Context, run: UUID, by: str) -> None:
            provider.make(1, str(ctx.message_id), provider.token)
            await mission.run(run).signal("approved", by, key=str(ctx.message_id))

        async def route(request: Request) -> JSONResponse:
            sent = await approve.enqueue(UUID(request.path_params["run"]), by="ada")
            return JSONResponse({"id": str(sent.id), "created": sent.created}, status_code=202)

        run, other = await mission.start(), await mission.start()
        shop = Starlette(routes=[Route("/missions/{run}/approve", route, methods=["POST"])])
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(shop), base_url="http://shop.test") as client:
            answers = [(await client.post(f"/missions/{run.id}/approve")).json() for _ in range(3)]
        assert [one["created"] for one in answers] == [True, False, False]
        assert len({one["id"] for one in answers}) == 1
        assert not approve.sync.enqueue(run.id, by="ada").created
        assert (provider.calls, [d.status.value for d in await all_of(hf, "mission:approve")]) == (0, ["pending"])
        await drain(hf)
        assert not (await approve.enqueue(run.id, by="ada")).created
        await approve.enqueue(other.id, by="bob")
        await drain(hf)
        assert provider.calls == 2
    assert [await one.result() for one in (run, other)] == ["ada", "bob"]
    detail = await hf.ops.workflow_run(run.id)
    assert [one.payload for one in detail.signals] == ['"ada"']


def test_a_command_needs_the_run_in_its_parameters_and_its_key() -> None:
    mission = Holdfast("sqlite:///unused.db").workflow("mission")

    def approve(run: UUID, by: str) -> None: ...

    def late(by: str, run: UUID) -> None: ...

    with pytest.raises(ConfigurationError, match="command mission:late: its first parameter must be `run: UUID`"):
        mission.command(key="{run}:v1")(late)
    with pytest.raises(ConfigurationError, match="is the same for all runs; name the run"):
        mission.command(key="{by}:v1")(approve)
    with pytest.raises(ConfigurationError, match="names ru"):
        mission.command(key="{run}:{ru}")(approve)
    assert mission.command(key="{run}:{by}")(approve).name == "mission:approve"
