"""Runs in the CLI, the HTTP API, the console and MCP tools: the same data, and the same commands by role."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from mcp.client import Client
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.console import console
from holdfast.interfaces.api.app import api
from holdfast.interfaces.cli import main
from holdfast.interfaces.console.pages.workflow_graph import run_graph
from holdfast.interfaces.mcp.server import server
from tests.support.worker import drain, query
from tests.workflows.test_operating import order, quick

ADDRESS = "http://shop.test"


def cli(dsn: str, *args: object) -> Result:
    found = CliRunner().invoke(
        main, [str(arg) for arg in args], env={"HOLDFAST_DSN": dsn, "HOLDFAST_APP": None}, prog_name="holdfast"
    )
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


@asynccontextmanager
async def console_of(hf: Holdfast, role: str = "operator") -> AsyncIterator[httpx2.AsyncClient]:
    app = Starlette(routes=[Mount("/ops", console(hf.ops, actor=lambda _: ("ada", role)))])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url=ADDRESS, headers={"origin": ADDRESS}
    ) as client:
        await client.get("/ops/workers")
        yield client


async def post(client: httpx2.AsyncClient, path: str, **form: str) -> httpx2.Response:
    return await client.post(f"/ops{path}", data={"csrf": client.cookies.get("holdfast_console", ""), **form})


async def test_the_command_line_lists_shows_and_commands_runs(hf: Holdfast, dsn: str) -> None:
    run = await order(hf).using(key="order:1").start("lamp")
    await drain(hf)
    listed = cli(dsn, "workflows", "list", "--state", "blocked").stdout
    assert str(run.id) in listed
    assert "order:1" in listed
    shown = cli(dsn, "workflows", "show", run.id).stdout
    for text in ("BLOCKED", "waits for signal approved", "card refused", f"holdfast workflows retry {run.id}"):
        assert text in shown
    detail = json.loads(cli(dsn, "workflows", "show", run.id, "--format", "json").stdout)
    assert {step["name"]: step["state"] for step in detail["steps"]}["approve"] == "waiting"
    refused = cli(dsn, "workflows", "cancel", run.id)
    assert refused.stderr.strip().endswith("stdin is not a terminal; pass --yes")
    assert "did you mean approved?" in cli(dsn, "workflows", "signal", run.id, "aproved").stderr
    assert "stored" in cli(dsn, "workflows", "signal", run.id, "aproved", "--force").stderr
    signal = ("workflows", "signal", run.id, "approved", "--payload", '{"by": "ada"}', "--key", "s")
    assert "stored" in cli(dsn, *signal).stderr
    assert "nothing was stored" in cli(dsn, *signal).stderr
    assert "not JSON" in cli(dsn, "workflows", "signal", run.id, "approved", "--payload", "ada").stderr
    assert "did you mean ship?" in cli(dsn, "workflows", "trigger", run.id, "shp").stderr
    assert "its manual steps are ship" in cli(dsn, "workflows", "trigger", run.id, "charge-card").stderr
    assert "stored" in cli(dsn, "workflows", "retry", run.id, "--reason", "fixed").stderr
    assert "did you mean charge?" in cli(dsn, "workflows", "retry", run.id, "--from", "charg").stderr
    assert "not confirmed" in cli(dsn, "workflows", "cancel", run.id).stderr
    assert "stored" in cli(dsn, "workflows", "cancel", run.id, "--yes").stderr
    assert "not confirmed" in cli(dsn, "workflows", "fork", run.id, "charge").stderr
    fork = ("workflows", "fork", run.id, "charge", "--key", "f", "--yes")
    forked = cli(dsn, *fork).stdout.strip()
    assert (cli(dsn, *fork).stdout.strip(), cli(dsn, *fork).exit_code) == (forked, 0)
    assert f"from run {run.id} at step charge" in cli(dsn, "workflows", "show", forked).stdout
    assert f"{forked}  order  running  from step charge" in cli(dsn, "workflows", "show", run.id).stdout
    assert "not reached yet" in cli(dsn, "workflows", "fork", run.id, "ship", "--yes").stderr
    assert cli(dsn, "workflows", "cancel", forked, "--yes").exit_code == 0
    names = json.loads(cli(dsn, "workflows", "names", "--format", "json").stdout)
    assert [(one["workflow"], one["running"]) for one in names] == [("order", 2)]
    assert cli(dsn, "workflows", "list", "--key", "other").stderr == "no matching runs\n"
    started = cli(dsn, "workflows", "run", "order", '{"sku": "desk"}', "--key", "op:1").stdout.strip()
    assert cli(dsn, "workflows", "run", "order", '{"sku": "desk"}', "--key", "op:1").stdout.strip() == started
    assert cli(dsn, "workflows", "run", "order", "[]").exit_code != 0


async def test_the_types_of_values_are_checked_before_a_run_if_the_app_is_given(
    hf: Holdfast, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(hf)
    await drain(hf)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "front_ends_app.py").write_text(
        "from holdfast import Holdfast\nfrom tests.workflows.test_operating import order\n"
        f"hf = Holdfast({dsn!r})\norder(hf)\n"
    )
    run = ("workflows", "run", "order", "--app", "front_ends_app:hf")
    refused = cli(dsn, *run, '{"sku": 3}')
    assert (refused.exit_code, "order takes sku: str" in refused.stderr) == (2, True), refused.stderr
    assert "it takes sku" in cli(dsn, *run, '{"skuu": "lamp"}').stderr
    assert await query(hf, "select id from {hf}workflow_run") == []
    assert cli(dsn, *run, '{"sku": "lamp"}').exit_code == 0


async def test_the_api_serves_runs_and_takes_commands_by_scope(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    await drain(hf)
    app = api(hf.ops)
    clients: dict[str, httpx2.AsyncClient] = {}
    for scope in ("read", "operate"):
        token = await hf.ops.create_token(scope, scope=scope, actor="root")
        clients[scope] = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app),
            base_url="http://holdfast.test/api/v1",
            headers={"authorization": f"Bearer {token.secret}"},
        )
    read, operate = clients["read"], clients["operate"]
    page = (await read.get("/workflow-runs", params={"state": "blocked", "workflow": "order"})).json()
    assert [one["id"] for one in page["items"]] == [str(run.id)]
    assert (page["items"][0]["state"], page["items"][0]["status"]) == ("blocked", "running")
    detail = (await read.get(f"/workflow-runs/{run.id}")).json()
    assert [step["name"] for step in detail["steps"]] == ["reserve", "charge", "approve", "pack", "ship"]
    assert detail["graph"][3]["after"] == ["charge", "approve"]
    assert (await read.get("/workflow-runs", params={"state": "stuck"})).status_code == 400
    assert (await read.get("/workflow-runs/nope")).status_code == 404
    assert (await read.get("/workflows")).json()["items"][0]["running"] == 1
    path = f"/workflow-runs/{run.id}/signal"
    body: dict[str, Any] = {"signal": "approved", "payload": {"by": "ada"}, "reason": "ok"}
    assert (await read.post(path, json=body)).status_code == 403
    assert (await operate.post(path, json=body)).json() == {"changed": True}
    assert (await operate.post(path, json={"reason": "ok"})).status_code in (400, 422)
    assert (await operate.post(f"/workflow-runs/{run.id}/retry", json={"reason": "x"})).json() == {"changed": True}
    assert (await operate.post(f"/workflow-runs/{run.id}/cancel", json={"reason": "x"})).json() == {"changed": True}
    forked = await operate.post(f"/workflow-runs/{run.id}/fork", json={"step": "charge", "reason": "x", "key": "f"})
    assert forked.json()["created"]
    detail = (await read.get(f"/workflow-runs/{forked.json()['id']}")).json()
    assert [detail[name] for name in ("forked_from", "forked_step")] == [str(run.id), "charge"]
    assert [one["id"] for one in (await read.get(f"/workflow-runs/{run.id}")).json()["forks"]] == [forked.json()["id"]]
    assert (await read.post(f"/workflow-runs/{run.id}/fork", json={"step": "charge", "reason": "x"})).status_code == 403
    document = (await read.get("/openapi.json")).json()
    assert "/api/v1/workflow-runs/{id}" in document["paths"] or "/workflow-runs/{id}" in document["paths"]
    for client in clients.values():
        await client.aclose()


async def test_the_console_draws_the_graph_and_sends_commands(hf: Holdfast) -> None:
    run = await order(hf).using(key="<b>1</b>").start("lamp")
    await drain(hf)
    async with console_of(hf) as client:
        listed = (await client.get("/ops/workflows")).text
        assert f"/ops/workflows/{run.id}" in listed
        assert "&lt;b&gt;1&lt;/b&gt;" in listed
        assert "No matches" in (await client.get("/ops/workflows", params={"state": "failed"})).text
        page = (await client.get(f"/ops/workflows/{run.id}")).text
        drawn = page[page.index('<svg class="run-graph"') : page.index("</svg>", page.index('<svg class="run-graph"'))]
        assert re.findall(r'class="step s-(\w+)"', drawn) == ["done", "blocked", "waiting", "idle", "idle"]
        assert [word.strip() for word in re.findall(r'class="word"[^>]*>([^<]*)', drawn)] == [
            "done",
            "blocked",
            "waiting",
            "idle",
            "idle",
        ]
        assert "style=" not in page
        assert "Step charge is blocked" in page
        (charge,) = [one for one in (await hf.ops.workflow_run(run.id)).steps if one.name == "charge"]
        delivery = (await client.get(f"/ops/deliveries/{charge.delivery_id}")).text
        assert f"/ops/workflows/{run.id}" in delivery
        assert f"/ops/workflows/{run.id}" in (await client.get(f"/ops/messages/{run.id}")).text
        assert (
            (await client.get("/ops/find", params={"q": str(run.id)}))
            .headers["location"]
            .endswith(f"/workflows/{run.id}")
        )
        misspelled = {"name": str(run.id), "signal": "aproved"}
        assert "send it with force" in (await post(client, "/workflows/signal", **misspelled)).text
        assert 'name="force"' in page
        assert (await post(client, "/workflows/signal", **misspelled, force="yes")).status_code == 303
        sent = await post(client, "/workflows/signal", name=str(run.id), signal="approved", payload='{"by": "ada"}')
        assert (sent.status_code, sent.headers["location"]) == (303, f"/ops/workflows/{run.id}")
        assert (
            "is not JSON" in (await post(client, "/workflows/signal", name=str(run.id), signal="a", payload="x")).text
        )
        assert "signal is empty" in (await post(client, "/workflows/signal", name=str(run.id), signal="")).text
        assert (await post(client, "/workflows/trigger", name=str(run.id), step="ship")).status_code == 303
        assert (await post(client, "/workflows/retry", name=str(run.id), reason="fixed")).status_code == 303
        assert re.findall(r"<option>(\w+)</option>", page[page.index("/workflows/fork") :]) == [
            *("reserve", "charge", "approve")
        ]
        key = re.findall(r'name="key" value="([^"]+)"', page)[0]
        places = {
            (await post(client, "/workflows/fork", name=str(run.id), step="charge", key=key)).headers["location"]
            for _ in range(2)
        }
        (place,) = places
        forked = (await client.get(place)).text
        assert f"/ops/workflows/{run.id}" in forked
        assert "copied from the run that was forked" in forked
        assert place in (await client.get(f"/ops/workflows/{run.id}")).text
    async with console_of(hf, "viewer") as client:
        assert (await post(client, "/workflows/cancel", name=str(run.id))).status_code == 403
        assert "Cancel run" not in (await client.get(f"/ops/workflows/{run.id}")).text
    detail = await hf.ops.workflow_run(run.id)
    assert [(one.action, one.actor) for one in detail.audit] == [
        ("fork", "ada"),
        ("retry", "ada"),
        ("trigger", "ada"),
        ("signal", "ada"),
        ("signal", "ada"),
    ]


async def test_agents_read_runs(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    await drain(hf)
    async with Client(server(hf.ops, actor="agent")) as client:
        listed = (await client.call_tool("list_workflow_runs", {"state": "blocked"})).structured_content
        assert [one["id"] for one in listed["runs"]] == [str(run.id)]
        detail = (await client.call_tool("get_workflow_run", {"id": str(run.id)})).structured_content
        assert detail["state"] == "blocked"
        counts = (await client.call_tool("list_workflows", {})).structured_content
        assert counts["workflows"][0]["workflow"] == "order"


async def test_the_drawing_has_layers_and_every_line_goes_down(hf: Holdfast) -> None:
    run = await order(hf).start("lamp")
    detail = await hf.ops.workflow_run(run.id)
    graph = run_graph(detail)
    assert graph is not None
    rows = [sorted(one.name for one in graph.steps if one.y == y) for y in sorted({one.y for one in graph.steps})]
    assert rows == [["reserve"], ["approve", "charge"], ["pack"], ["ship"]]
    assert len(graph.edges) == 5
    assert not any(edge.is_done for edge in graph.edges)
    assert graph.width <= 360 - 32
    await quick(hf).start(1)
