"""MCP tools that read what the CLI lists: deliveries in any state, messages, requests, queues, schedules and other resources."""

from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import UUID

from pydantic import Field

from holdfast.core.message import Message
from holdfast.interfaces.presentation.filters import delivery_filter, parse_time
from holdfast.ops.service import Operations

Limit = Annotated[int, Field(ge=1, le=100, description="Maximum number of items.")]
Since = Annotated[str | None, Field(description="Only items after this: an age (2h, 3d) or an ISO 8601 time.")]
Before = Annotated[UUID | None, Field(description="Cursor: the `next` of the previous page.")]


def add_resource_tools(read_tool: Callable[[Callable[..., Awaitable[object]]], None], ops: Operations) -> None:
    """Adds the tools to a server. None of them shows the payload of a message or a declared secret."""

    @read_tool
    async def list_deliveries(
        status: Annotated[str | None, Field(description="pending, in_flight, delivered, failed, or discarded.")] = None,
        consumer: Annotated[str | None, Field(description="Only this consumer.")] = None,
        queue: Annotated[str | None, Field(description="Only this queue.")] = None,
        type: Annotated[str | None, Field(description="Only this event type, or a prefix (order.*, job.*).")] = None,
        since: Since = None,
        before: Before = None,
        limit: Limit = 20,
    ) -> object:
        """List deliveries in any state, newest first, without payloads. If `next` is present, pass it as `before`."""
        filter = delivery_filter(
            status=() if status is None else (status,),
            consumer=() if consumer is None else (consumer,),
            type=type,
            queue=queue,
            since=None if since is None else parse_time(since, await ops.now()),
        )
        found = await ops.delivery_page(filter, limit=limit, before=before)
        if not found.items:
            await ops.check_filter(filter)
        return {"deliveries": found.items, "next": found.next}

    @read_tool
    async def list_messages(
        type: Annotated[str | None, Field(description="Only this event type, or a prefix (order.*, job.*).")] = None,
        source: Annotated[str | None, Field(description="Only this source.")] = None,
        key: Annotated[str | None, Field(description="Only the message with this key.")] = None,
        since: Since = None,
        before: Before = None,
        limit: Limit = 20,
    ) -> object:
        """List messages, newest first, without payloads: get_message shows one. If `next` is present, pass it as `before`."""
        found = await ops.message_page(
            type=type,
            source=source,
            key=key,
            since=None if since is None else parse_time(since, await ops.now()),
            limit=limit,
            before=before,
        )
        return {"messages": [_without_payload(one) for one in found.items], "next": found.next}

    @read_tool
    async def trace_request(
        request_id: Annotated[str, Field(max_length=200, description="The request id of a log line or a response.")],
        after: Annotated[UUID | None, Field(description="Cursor: the `next` of the previous page.")] = None,
        limit: Limit = 20,
    ) -> object:
        """Get what one request caused: its messages without payloads, their deliveries and runs, and what operators did."""
        found = await ops.trace_request(request_id, limit=limit, after=after)
        steps = [
            {"message": _without_payload(one.message), "deliveries": one.deliveries, "more": one.more}
            for one in found.steps
        ]
        return {"request_id": found.request_id, "steps": steps, "audit": found.audit, "next": found.next}

    @read_tool
    async def list_queues() -> object:
        """List queues with limits, rates and whether they are paused."""
        return {"queues": await ops.queues()}

    @read_tool
    async def list_schedules(
        job: Annotated[str | None, Field(description="Only schedules of this job.")] = None,
        prefix: Annotated[str | None, Field(description="Only names that begin with this.")] = None,
        after: Annotated[str | None, Field(description="Cursor: the name of the last schedule of a page.")] = None,
        limit: Limit = 20,
    ) -> object:
        """List schedules by name with their next run, and whether they are paused or overdue."""
        return {"schedules": await ops.schedules(job=job, prefix=prefix, after=after, limit=limit)}

    @read_tool
    async def list_job_groups(before: Before = None, limit: Limit = 20) -> object:
        """List groups and chains of jobs, newest first, with their jobs by state."""
        found = await ops.job_groups(limit=limit, before=before)
        return {"groups": found.items, "next": found.next}

    @read_tool
    async def get_job_group(id: UUID) -> object:
        """Get one group of jobs: its stages, its first failed jobs and the progress of running ones."""
        return await ops.job_group(id)

    @read_tool
    async def list_projectors() -> object:
        """List projectors with their position, lag, rebuild and last run."""
        return {"projectors": await ops.projectors()}

    @read_tool
    async def list_relays() -> object:
        """List relays to brokers with what waits to be sent."""
        return {"relays": await ops.relays()}

    @read_tool
    async def list_breakers() -> object:
        """List circuit breakers with their state and why they opened."""
        return {"breakers": await ops.breakers()}

    @read_tool
    async def list_webhooks(
        tenant: Annotated[str | None, Field(description="Only endpoints of this tenant.")] = None,
    ) -> object:
        """List webhook endpoints with their state, without secrets and without the path of their URL."""
        return {"webhooks": await ops.webhooks(tenant=tenant)}

    @read_tool
    async def list_idempotency_keys(
        scope: Annotated[str | None, Field(description="Only keys of this scope.")] = None,
        key: Annotated[str | None, Field(description="Only this key.")] = None,
        limit: Limit = 20,
    ) -> object:
        """List HTTP idempotency keys with their state, newest first, without responses."""
        return {"keys": await ops.idempotency_keys(scope=scope, key=key, limit=limit)}

    @read_tool
    async def list_plans(before: Before = None, limit: Limit = 20) -> object:
        """List bulk actions of operators, newest first: what they change, and how far they are."""
        return {"plans": await ops.plans(limit=limit, before=before)}


def _without_payload(message: Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in ("id", "type", "source", "key", "occurred_at")}
