"""`holdfast mcp`: an agent's client, of the official SDK, talks to the real program over its standard streams."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from holdfast.stores.integrations.idempotency import Reservation, reserve
from tests.cli.conftest import Shop, command

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters


@asynccontextmanager
async def agent(shop: Shop, *options: str) -> AsyncIterator[Any]:
    program, *args = command("mcp", *options)
    served = StdioServerParameters(command=program, args=args, env=shop.environment(), cwd=shop.folder)
    async with Client(served, read_timeout_seconds=60) as client:
        yield client


async def ask(client: Any, tool: str, **arguments: object) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def test_an_agent_lists_reads_and_replays_a_dead_letter_in_its_own_name(shop: Shop) -> None:
    async with agent(shop, "--actor", "ada", "--allow-actions") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"list_dlq_events", "get_dlq_event_detail", "replay_dlq_event"} <= tools.keys()
        acting = [name for name, tool in tools.items() if not tool.annotations.read_only_hint]
        assert acting == ["replay_dlq_event"]
        hints = tools["replay_dlq_event"].annotations
        assert (hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint) == (True, False, True)

        (group,) = (await ask(client, "list_failure_groups"))["groups"]
        first = await ask(client, "list_dlq_events", group=group["fingerprint"], limit=2)
        rest = await ask(client, "list_dlq_events", before=first["next"], limit=20)
        events = first["events"] + rest["events"]
        assert len({event["id"] for event in events}) == len(events) == group["count"]
        assert rest["next"] is None

        found = await ask(client, "search", text=group["error_type"], limit=1)
        assert [one["fingerprint"] for one in found["groups"]] == [group["fingerprint"]]
        assert found["matches"][0]["field"] == "error"
        assert await ask(client, "search", text=group["error_type"], after=found["next"], limit=1)

        detail = await ask(client, "get_dlq_event_detail", id=events[0]["id"])
        assert detail["message"]["headers"]["request_id"].startswith("r-")
        assert [run["error_type"] for run in detail["runs"]] == ["RuntimeError", "RuntimeError"]

        await ask(client, "replay_dlq_event", id=events[0]["id"], reason="card service is back")
        again = await client.call_tool("replay_dlq_event", {"id": events[0]["id"], "reason": "once more"})
        assert again.is_error
        assert "pending" in again.content[0].text
    entries = json.loads(shop.run("audit", "list", "--target", events[0]["id"], "--format", "json").stdout)
    (entry,) = [one for one in entries if one["target"] == events[0]["id"]]
    assert (entry["actor"], entry["action"], entry["reason"]) == ("ada via mcp", "replay", "card service is back")


def test_an_agent_cannot_be_given_both_modes(shop: Shop) -> None:
    ended = shop.run("mcp", "--read-only", "--allow-actions")
    assert ended.exit_code == 2
    assert "mutually exclusive" in ended.stderr


async def test_an_agent_only_reads_unless_actions_are_allowed_and_bad_questions_say_what_is_wrong(shop: Shop) -> None:
    async with agent(shop) as client:
        assert "replay_dlq_event" not in {tool.name for tool in (await client.list_tools()).tools}
        (event,) = (await ask(client, "list_dlq_events", limit=1))["events"]
        refused = await client.call_tool("replay_dlq_event", {"id": event["id"], "reason": "x"})
        assert refused.is_error
        wrong = await client.call_tool("list_dlq_events", {"since": "yesterday"})
        assert wrong.is_error
        assert "neither an age" in wrong.content[0].text
        for tool in ("list_dlq_events", "list_failure_groups", "list_deliveries"):
            misspelled = await client.call_tool(tool, {"consumer": "biling"})
            assert misspelled.is_error
            assert "did you mean 'billing'?" in misspelled.content[0].text
        absent = await client.call_tool("get_dlq_event_detail", {"id": "01a1de9e-3feb-7141-acf8-3a160ca18709"})
        assert absent.is_error
        assert "01a1de9e" in absent.content[0].text
        for tool in ("get_stats", "list_consumers", "list_workers", "list_audit", "run_doctor"):
            assert await ask(client, tool)
        assert (await ask(client, "get_message", id=event["message_id"]))["deliveries"]
    assert json.loads(shop.run("dlq", "show", event["id"], "--format", "json").stdout)["status"] == "failed"


async def test_an_agent_sees_no_token_of_a_request_that_reserved_a_key(shop: Shop) -> None:
    shop.ask(reserve(Reservation("acme", "k-1", "hash", "secret-owner"), timedelta(minutes=5), timedelta(days=1)))
    async with agent(shop) as client:
        (one,) = (await ask(client, "list_idempotency_keys"))["keys"]
    assert (one["scope"], one["key"], one["status"]) == ("acme", "k-1", "started")
    assert "owner" not in one


async def test_an_agent_reads_what_the_command_line_lists(shop: Shop) -> None:
    """Not tokens, keys of encryption and files: an agent has no use for them."""
    lists = {
        "deliveries", "messages", "queues", "consumers", "projectors", "workflows", "schedules", "breakers", "webhooks", "workers",
        "plans", "audit",
    }  # fmt: skip
    async with agent(shop) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {f"list_{name}" for name in lists} <= tools.keys()
        for name in ("list_queues", "list_projectors", "list_relays", "list_breakers", "list_webhooks"):
            assert isinstance((await ask(client, name))[name.removeprefix("list_")], list)
        for name in ("list_plans", "list_schedules", "list_job_groups", "list_idempotency_keys"):
            assert await ask(client, name, limit=5)
        failed = await ask(client, "list_deliveries", status="failed", limit=2)
        assert [one["status"] for one in failed["deliveries"]] == ["failed", "failed"]
        assert failed["next"] is not None
        (message,) = (await ask(client, "list_messages", limit=1))["messages"]
        assert message.keys() == {"id", "type", "source", "key", "occurred_at"}
        detail = await ask(client, "get_dlq_event_detail", id=failed["deliveries"][0]["id"])
        traced = await ask(client, "trace_request", request_id=detail["message"]["headers"]["request_id"])
        (step, *_) = [one for one in traced["steps"] if one["message"]["id"] == detail["message"]["id"]]
        assert step["message"].keys() == message.keys()
        assert detail["id"] in [one["id"] for one in step["deliveries"]]
