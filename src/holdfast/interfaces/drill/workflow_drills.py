"""Drills of workflows: a broken step, and a command that is sent several times."""

from contextlib import closing
from uuid import UUID

from holdfast import Holdfast, RetryPolicy, Step, Workflow
from holdfast.interfaces.drill.provider import Provider
from holdfast.interfaces.drill.report import PromiseCheck, check_equal
from holdfast.interfaces.drill.scratch import ScratchStore, running_worker, until

_BUDGET = 3
_SHORT = RetryPolicy.fixed(0.05, attempts=_BUDGET)


async def broken_step(store: ScratchStore) -> list[PromiseCheck]:
    """A workflow step fails: its run is reported as blocked; after a retry it continues and repeats no completed step."""
    with closing(Provider()) as provider:
        app, ran = store.app(), list[str]()
        mission = _mission(app, provider, ran)
        blocked: list[object] = []

        @app.consumer("workflow.step.blocked", name="alarm")
        def alarm(event: dict[str, object]) -> None:
            blocked.append(event["step"])

        async with running_worker(app):
            run = await mission.start(1)
            await until("the step is blocked and reported", lambda: _is(app, run.id, "blocked", bool(blocked)))
            before = await app.ops.workflow_run(run.id)
            provider.start()
            await app.ops.retry_run(run.id, actor="drill", reason="the service is back")
            await until("the run is done", lambda: _is(app, run.id, "done"))
            after = await app.ops.workflow_run(run.id)
        states = {step.name: step.state.value for step in before.steps}
        attempts = {step.name: step.attempts for step in before.steps}
        return [
            check_equal(
                "the step is blocked after its budget", (states["build"], attempts["build"]), ("blocked", _BUDGET)
            ),
            check_equal("the step after it has not started", states["report"], "idle"),
            check_equal("an event names the blocked step", blocked, ["build"]),
            check_equal("after the retry every step is done", {step.state.value for step in after.steps}, {"done"}),
            check_equal("completed steps are not repeated", (ran.count("plan"), ran.count("report")), (1, 1)),
            check_equal("the service created one item", len(provider.made), 1),
            check_equal("the audit log has the retry", [one.action for one in after.audit], ["retry"]),
        ]


async def duplicate_command(store: ScratchStore) -> list[PromiseCheck]:
    """A run is started five times with one key, by the application and by an operator: one run, one call of the service."""
    with closing(Provider()) as provider:
        provider.start()
        app, ran = store.app(), list[str]()
        mission = _mission(app, provider, ran).using(key="mission:7")
        async with running_worker(app):
            ids = {(await mission.start(7)).id for _ in range(3)}
            ids |= {
                (await app.ops.start_run("mission", {"id": 7}, key="mission:7", actor="drill")).id for _ in range(2)
            }
            (id, *_) = ids
            await until("the run is done", lambda: _is(app, id, "done"))
            again = await app.ops.start_run("mission", {"id": 7}, key="mission:7", actor="drill")
            listed = await app.ops.workflow_runs()
        return [
            check_equal("five commands return one run", len(ids), 1),
            check_equal("a command after the end returns the same run", (again.id, again.created), (id, False)),
            check_equal("one run is stored", len(listed.items), 1),
            check_equal("the service received one call", provider.calls, 1),
            check_equal("each step ran once", ran, ["plan", "build", "report"]),
        ]


def _mission(app: Holdfast, provider: Provider, ran: list[str]) -> Workflow:
    mission = app.workflow("mission")

    @mission.step
    def plan(id: int) -> int:
        ran.append("plan")
        return id * 10

    @mission.step(after=plan, exhausted="block", retry=_SHORT)
    def build(ctx: Step, plan: int) -> str:
        ran.append("build")
        provider.make(plan, ctx.key, provider.token)
        return ctx.key

    @mission.step(after=build)
    def report(build: str) -> str:
        ran.append("report")
        return build

    return mission


async def _is(app: Holdfast, id: UUID, state: str, also: bool = True) -> bool:
    return also and (await app.ops.workflow_run(id)).listed.state == state
