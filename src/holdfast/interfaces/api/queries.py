"""Endpoints that read: deliveries, dead letters, messages, consumers, audit and more."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import Field

from holdfast.core.message import Message
from holdfast.interfaces.api.endpoint import (
    ApiCall,
    ApiEndpoint,
    Page,
    get,
    number,
    page,
    read_cursor,
    record_cursor,
    text,
    write_cursor,
)
from holdfast.interfaces.api.fields import (
    Flag,
    LimitParams,
    NoParams,
    PageParams,
    PendingBound,
    StepLimit,
    Text,
    Timestamp,
)
from holdfast.interfaces.api.problem import Problem
from holdfast.interfaces.presentation.filters import RUN_FIELDS, delivery_filter, run_filter
from holdfast.interfaces.presentation.pending_count import QueuePending
from holdfast.ops.queries.deliveries import DeliveryDetail
from holdfast.ops.queries.flow_keys import KeyFilter, KeyPage
from holdfast.ops.queries.messages import MessageDetail
from holdfast.ops.queries.request_trace import RequestTrace
from holdfast.ops.queries.search import SearchResult
from holdfast.ops.queries.stats import Stats
from holdfast.ops.queries.workflows import WorkflowRunDetail
from holdfast.ops.resources.breakers import BreakerState
from holdfast.ops.resources.consumers import ConsumerState
from holdfast.ops.resources.job_groups import GroupDetail
from holdfast.ops.resources.projectors import ProjectorState
from holdfast.ops.resources.queues import QueueState
from holdfast.ops.resources.relays import RelayState
from holdfast.ops.resources.schedules import ScheduleState
from holdfast.ops.resources.webhooks import Webhook
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import AuditEntry
from holdfast.stores.admin.token import Scope, Token
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.groups.query import GroupProgress
from holdfast.stores.integrations.idempotency import KeyRecord, KeyStatus
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.queries.query import DeliverySummary, FailureGroup, Filter
from holdfast.stores.workflows.run_page import ListedRun, WorkflowCounts

T = TypeVar("T")

Many = Annotated[tuple[Text, ...], Field(max_length=50)]


class DeadLetterQuery(PageParams):
    """Filter of dead letters. All given parameters must match; `consumer` is repeatable."""

    consumer: Many = ()
    queue: Text | None = None
    type: Text | None = None
    error_type: Text | None = None
    group: Text | None = None
    message_id: UUID | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None


_FILTER = set(DeadLetterQuery.model_fields) - set(PageParams.model_fields)


class DeliveryQuery(DeadLetterQuery):
    """Filter of deliveries. `status` and `consumer` are repeatable."""

    status: Annotated[tuple[Literal["pending", "in_flight", "delivered", "failed"], ...], Field(max_length=4)] = ()
    discarded: Flag | None = None


class MessageQuery(PageParams):
    """Filter of messages. `type` may be a prefix such as `order.*`. Times are compared with the time of publishing."""

    type: Text | None = None
    source: Text | None = None
    key: Text | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None


class WorkflowRunQuery(PageParams):
    """Filter of workflow runs. Times are compared with the start of the run."""

    workflow: Text | None = None
    state: Literal["running", "compensating", "done", "cancelled", "failed", "blocked"] | None = None
    key: Text | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None


class JobGroupQuery(NoParams):
    """Page of groups. Each group of a page is counted, so a page has at most 100."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    cursor: Text | None = None


class SearchQuery(PageParams):
    """Search text: part of an id, error, key, tenant, type, consumer or payload."""

    q: Annotated[Text, Field(min_length=2, max_length=200, examples=["connection refused"])]


class StatsQuery(NoParams):
    """`exact` counts exactly. Its time grows with the number of unfinished deliveries."""

    exact: Flag = False


class PendingQuery(NoParams):
    """`most` is where the count stops. A count that stopped is named in `at_least`."""

    consumer: Text | None = None
    most: PendingBound = 10_000


class RequestTraceQuery(NoParams):
    """Page of the messages of a request. Pass `next` of one page as `after` to get the next page."""

    limit: StepLimit = 20
    after: UUID | None = None


class GroupQuery(LimitParams):
    """Filter by consumer. Default: all consumers."""

    consumer: Many = ()


class WebhookQuery(NoParams):
    """Filter of webhook endpoints."""

    tenant: Text | None = None


class FlowKeyQuery(PageParams):
    """Filter of a consumer's keys. `next` of a page is the `cursor` of the next one."""

    state: Literal["all", "waiting", "running", "blocked", "paused", "limited", "rated"] = "all"
    prefix: Text = ""


class ScheduleQuery(PageParams):
    """Filter for schedules."""

    job: Text | None = None
    prefix: Text | None = None


class KeyQuery(PageParams):
    """Filter of idempotency keys."""

    scope: Text | None = None
    key: Text | None = None
    status: Literal["started", "completed", "failed"] | None = None


class AuditQuery(PageParams):
    """Filter of audit entries. A plan is one entry; `kind` and `target` together list every entry of that item."""

    kind: Text | None = None
    target: Text | None = None
    actor: Text | None = None
    action: Text | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None


async def _deliveries(call: ApiCall) -> Page[DeliverySummary]:
    query: DeliveryQuery = call.query
    return await _page_of(call, replace(_filter(query, status=query.status), discarded=query.discarded))


async def _pending(call: ApiCall) -> QueuePending:
    query: PendingQuery = call.query
    found = await call.ops.pending(call.name, consumer=query.consumer, most=query.most)
    return QueuePending(call.name, query.consumer, found)


async def _dead_letters(call: ApiCall) -> Page[DeliverySummary]:
    return await _page_of(call, _filter(call.query, state="waiting"))


def _filter(query: DeadLetterQuery, **more: Any) -> Filter:
    return delivery_filter(**query.model_dump(include=_FILTER), **more)


async def _page_of(call: ApiCall, filter: Filter) -> Page[DeliverySummary]:
    before = read_cursor("deliveries", call.query.cursor, UUID)
    found = await call.ops.delivery_page(filter, limit=call.query.limit, before=before)
    if not found.items:
        await call.ops.check_filter(filter)
    return _slice("deliveries", found)


async def _messages(call: ApiCall) -> Page[Message]:
    before = read_cursor("messages", call.query.cursor, UUID)
    return _slice("messages", await call.ops.message_page(**_given(call), before=before))


def _given(call: ApiCall) -> dict[str, Any]:
    """The query parameters that the operation takes under the same names."""
    return call.query.model_dump(exclude={"cursor"})  # type: ignore[no-any-return]


async def _workflow_runs(call: ApiCall) -> Page[ListedRun]:
    query: WorkflowRunQuery = call.query
    before = read_cursor("workflow runs", query.cursor, UUID)
    wanted = run_filter(**query.model_dump(include=set(RUN_FIELDS)))
    return _slice("workflow runs", await call.ops.workflow_runs(wanted, limit=query.limit, before=before))


async def _job_groups(call: ApiCall) -> Page[GroupProgress]:
    query: JobGroupQuery = call.query
    before = read_cursor("job groups", query.cursor, UUID)
    return _slice("job groups", await call.ops.job_groups(limit=query.limit, before=before))


def _slice(kind: str, found: Slice[T]) -> Page[T]:
    """A page of a bounded scan. It may be shorter than the limit without being the last."""
    return Page(found.items, None if found.next is None else write_cursor(kind, str(found.next)))


async def _keys(call: ApiCall) -> Page[KeyRecord]:
    query: KeyQuery = call.query
    status = None if query.status is None else KeyStatus(query.status)
    before = read_cursor("keys", query.cursor, record_cursor)
    found = await call.ops.idempotency_keys(**_given(call) | {"status": status}, before=before)
    return page("keys", found, query.limit, lambda one: [one.expires_at.isoformat(), one.scope, one.key])


async def _flow_keys(call: ApiCall) -> KeyPage:
    query: FlowKeyQuery = call.query
    after = read_cursor("flow-keys", query.cursor, text)
    found = await call.ops.keys(
        call.name, state=KeyFilter(query.state), prefix=query.prefix, after=after, limit=query.limit
    )
    return found if found.next is None else replace(found, next=write_cursor("flow-keys", found.next))


async def _audit(call: ApiCall) -> Page[AuditEntry]:
    query: AuditQuery = call.query
    before = read_cursor("audit", query.cursor, number)
    if query.target is not None and query.kind is None:
        raise Problem(400, "invalid_parameters", "target requires kind; pass both")
    target = None if query.kind is None or query.target is None else (query.kind, query.target)
    found = await call.ops.audit(**_given(call) | {"target": target}, before=before)
    if not found:
        await call.ops.check_audit_filter(action=query.action, target=target)
    return page("audit", found, query.limit, lambda one: one.id)


async def _search(call: ApiCall) -> SearchResult:
    query: SearchQuery = call.query
    after = read_cursor("search", query.cursor, str)
    found = await call.ops.search(query.q, limit=query.limit, after=after)
    return found if found.next is None else replace(found, next=write_cursor("search", found.next))


async def _groups(call: ApiCall) -> Page[FailureGroup]:
    found = await call.ops.failure_groups(limit=call.query.limit, consumers=call.query.consumer)
    if not found:
        await call.ops.check_filter(Filter(consumers=call.query.consumer))
    return Page(found)


async def _schedules(call: ApiCall) -> Page[ScheduleState]:
    query = call.query
    after = read_cursor("schedules", query.cursor, str)
    found = await call.ops.schedules(job=query.job, prefix=query.prefix, after=after, limit=query.limit)
    return page("schedules", found, query.limit, lambda one: one.name)


async def _webhooks(call: ApiCall) -> Page[Webhook]:
    shown = call.caller.scope.covers(Scope.OPERATE)
    return Page(await call.ops.webhooks(tenant=call.query.tenant, show_path=shown))


_ID = frozenset({"id"})


def _list(
    path: str, summary: str, answer: Any, read: Callable[[Operations], Awaitable[Any]], **more: Any
) -> ApiEndpoint:
    """An endpoint that returns all items on one page."""

    async def handle(call: ApiCall) -> Any:
        return Page(await read(call.ops))

    return get(path, summary, answer, handle, **more)


ENDPOINTS = (
    get(
        "/stats",
        "Counts of pending, in-flight and failed deliveries per queue and consumer",
        Stats,
        lambda call: call.ops.stats(exact=call.query.exact),
        query=StatsQuery,
    ),
    _list("/queues", "List queues", Page[QueueState], lambda ops: ops.queues()),
    get(
        "/queues/{name}/pending",
        "Count the pending deliveries of a queue up to a bound, from a part of one index",
        QueuePending,
        _pending,
        query=PendingQuery,
    ),
    _list("/consumers", "List registered consumers", Page[ConsumerState], lambda ops: ops.consumers()),
    get(
        "/consumers/{name}/keys",
        "List the keys of a consumer with flow control: what waits, runs and is held up, and why",
        KeyPage,
        _flow_keys,
        query=FlowKeyQuery,
    ),
    get("/deliveries", "List deliveries, newest first", Page[DeliverySummary], _deliveries, query=DeliveryQuery),
    get(
        "/deliveries/{id}",
        "Get a delivery with message, runs, audit and siblings",
        DeliveryDetail,
        lambda call: call.ops.delivery(call.id("delivery")),
        ids=_ID,
    ),
    get(
        "/dead-letters", "List dead letters, newest first", Page[DeliverySummary], _dead_letters, query=DeadLetterQuery
    ),
    get("/failure-groups", "List failure groups of dead letters", Page[FailureGroup], _groups, query=GroupQuery),
    get(
        "/search",
        "Search failure groups and deliveries; `next` is the cursor of the next page",
        SearchResult,
        _search,
        query=SearchQuery,
    ),
    get("/messages", "List messages, newest first", Page[Message], _messages, query=MessageQuery),
    get(
        "/messages/{id}",
        "Get a message with its deliveries",
        MessageDetail,
        lambda call: call.ops.message(call.id("message")),
        ids=_ID,
    ),
    get(
        "/requests/{name}",
        "Trace one request by its id",
        RequestTrace,
        lambda call: call.ops.trace_request(call.name, limit=call.query.limit, after=call.query.after),
        query=RequestTraceQuery,
    ),
    _list(
        "/workflows", "List workflows with the states of their runs", Page[WorkflowCounts], lambda ops: ops.workflows()
    ),
    get("/workflow-runs", "List workflow runs, newest first", Page[ListedRun], _workflow_runs, query=WorkflowRunQuery),
    get(
        "/workflow-runs/{id}",
        "Get a workflow run with its steps, waits and signals",
        WorkflowRunDetail,
        lambda call: call.ops.workflow_run(call.id("run")),
        ids=_ID,
    ),
    get("/job-groups", "List groups of jobs, newest first", Page[GroupProgress], _job_groups, query=JobGroupQuery),
    get(
        "/job-groups/{id}",
        "Get a group of jobs with its stages and dead letters",
        GroupDetail,
        lambda call: call.ops.job_group(call.id("group")),
        ids=_ID,
    ),
    _list("/projectors", "List projectors with their positions", Page[ProjectorState], lambda ops: ops.projectors()),
    _list("/relays", "List relays with their lag", Page[RelayState], lambda ops: ops.relays()),
    get("/schedules", "List schedules, by name", Page[ScheduleState], _schedules, query=ScheduleQuery),
    get("/schedules/{name}", "Read a schedule", ScheduleState, lambda call: call.ops.schedule(call.name)),
    get("/webhooks", "List webhook endpoints, without secrets", Page[Webhook], _webhooks, query=WebhookQuery),
    _list("/breakers", "List circuit breakers that recorded a failure", Page[BreakerState], lambda ops: ops.breakers()),
    get("/idempotency-keys", "List idempotency keys", Page[KeyRecord], _keys, query=KeyQuery),
    _list("/workers", "List workers", Page[WorkerRecord], lambda ops: ops.workers()),
    get("/audit", "List audit entries, newest first", Page[AuditEntry], _audit, query=AuditQuery),
    _list("/tokens", "List tokens, without secrets", Page[Token], lambda ops: ops.tokens(), scope=Scope.ADMIN),
)
