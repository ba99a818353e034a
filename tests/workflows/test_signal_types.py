"""Payloads of signals are checked against the types in the code of the steps before they are stored."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, InvalidPayload, Step
from holdfast.interfaces.cli import main
from tests.support.worker import drain, query


@dataclass
class Approval:
    by: str


def plain(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> str:
        decision = await ctx.wait("approved", Approval, timeout="3d")
        return "nobody" if decision is None else decision.by

    return flow


def blocking(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    def approve(ctx: Step) -> str:
        return str(ctx.sync.wait("approved", type=Approval).by)

    return flow


def in_an_undo(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    async def release(ctx: Step) -> None:
        await ctx.wait("approved", Approval)

    @flow.step(undo=release)
    async def reserve(ctx: Step) -> None: ...

    return flow


def of_two_types(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> None:
        await ctx.wait("approved", Approval)

    @flow.step(after=approve)
    async def again(ctx: Step) -> None:
        await ctx.wait("approved", int)

    return flow


def local_class(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @dataclass
    class Local:
        by: str

    @flow.step
    async def approve(ctx: Step) -> str:
        return (await ctx.wait("approved", Local)).by

    return flow


async def pending_signals(hf: Holdfast) -> int:
    return len(await query(hf, "select id from {hf}message where type = 'workflow.signal'"))


@pytest.mark.parametrize("declare", [plain, blocking, in_an_undo, of_two_types, local_class])
async def test_a_payload_that_no_wait_takes_is_refused_before_it_is_stored(
    hf: Holdfast, declare: Callable[[Holdfast], Any]
) -> None:
    run = await declare(hf).start()
    for wrong in (None, "ada", {"by": 7}):
        with pytest.raises(InvalidPayload, match=r"signal approved must be .*nothing was stored"):
            await run.signal("approved", wrong)
        with pytest.raises(InvalidPayload, match="nothing was stored"):
            run.sync.signal("approved", wrong)
        with pytest.raises(InvalidPayload, match=r"nothing was stored.*--force"):
            await hf.ops.signal_run(run.id, signal="approved", payload=wrong, actor="ada")
        with pytest.raises(InvalidPayload, match="nothing was stored"):
            hf.ops.sync.signal_run(run.id, signal="approved", payload=wrong, actor="ada")
    assert await pending_signals(hf) == 0
    await run.signal("approved", Approval("ada"))
    await hf.ops.signal_run(run.id, signal="approved", payload={"by": "bob"}, actor="ada")
    await hf.ops.signal_run(run.id, signal="approved", payload=7, force=True, actor="ada")
    assert await pending_signals(hf) == 3


async def test_a_signal_with_two_types_takes_both(hf: Holdfast) -> None:
    run = await of_two_types(hf).start()
    with pytest.raises(InvalidPayload, match=r"Approval.* int"):
        await run.signal("approved", "x")
    await run.signal("approved", {"by": "ada"})
    await run.signal("approved", 7)


async def wait_elsewhere(ctx: Step) -> Any:
    return await ctx.wait("approved", int)


def without_a_type(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> object:
        return [await ctx.wait("approved"), await ctx.wait("approved", Approval)]

    return flow


def passes_its_context_on(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> object:
        return [await ctx.wait("approved", Approval), await wait_elsewhere(ctx)]

    return flow


def names_its_signal_at_run_time(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step, who: str = "approved") -> object:
        return [await ctx.wait("approved", Approval), await ctx.wait(who, int)]

    return flow


def chooses_its_type_at_run_time(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> object:
        kind = int
        return await ctx.wait("approved", kind)

    return flow


def imports_its_type(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> object:
        from builtins import str as Approval  # noqa: N812

        return await ctx.wait("approved", Approval)

    return flow


def passes_its_wait_on(hf: Holdfast) -> Any:
    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> object:
        wait = ctx.wait
        return [await ctx.wait("approved", Approval), await wait("approved", int)]

    return flow


@pytest.mark.parametrize(
    "declare",
    [
        without_a_type,
        passes_its_context_on,
        names_its_signal_at_run_time,
        chooses_its_type_at_run_time,
        imports_its_type,
        passes_its_wait_on,
    ],
)
async def test_a_payload_passes_where_the_code_does_not_show_all_waits(
    hf: Holdfast, declare: Callable[[Holdfast], Any]
) -> None:
    run = await declare(hf).start()
    await run.signal("approved", "anything")
    await run.signal("other", "anything")
    assert await pending_signals(hf) == 2


PROGRAM = """
from holdfast import Holdfast, Step

hf = Holdfast({dsn!r})
flow = hf.workflow("flow")

@flow.step
async def approve(ctx: Step) -> str:
    return (await ctx.wait("approved", dict))["by"]
"""


async def test_the_printed_command_is_refused_as_printed_and_with_the_app_a_missing_payload_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dsn = f"sqlite:///{tmp_path}/flow.db"
    (tmp_path / "signal_app.py").write_text(PROGRAM.format(dsn=dsn))
    hf = Holdfast(dsn)

    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> str:
        return str((await ctx.wait("approved", dict))["by"])

    run = await flow.start()
    await drain(hf)
    await hf.close()

    def cli(*args: str) -> Any:
        env = {"HOLDFAST_DSN": None, "HOLDFAST_APP": "signal_app.py:hf"}
        return CliRunner().invoke(main, list(args), env=env, prog_name="holdfast")

    shown = cli("workflows", "show", str(run.id))
    assert f"holdfast workflows signal {run.id} approved --payload '<JSON>'" in shown.stdout
    printed = cli("workflows", "signal", str(run.id), "approved", "--payload", "<JSON>")
    assert printed.exit_code == 2
    assert "'<JSON>' is not JSON" in printed.stderr
    missing = cli("workflows", "signal", str(run.id), "approved")
    assert missing.exit_code != 0
    assert "signal approved must be dict; nothing was stored" in missing.stderr
    assert cli("workflows", "signal", str(run.id), "approved", "--payload", json.dumps({"by": "ada"})).exit_code == 0
