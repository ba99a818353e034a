"""Reliable events, jobs and messages: accepted work is never lost, and its effect is not applied twice.

Names are loaded when they are first used: importing `holdfast` is quick and needs no extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.app.declaration.router import Router
    from holdfast.app.holdfast import Holdfast
    from holdfast.app.jobs.group import Group, JobCall
    from holdfast.app.jobs.group_handle import GroupHandle
    from holdfast.app.jobs.job import Job
    from holdfast.app.jobs.job_handle import JobHandle
    from holdfast.app.workflows.workflow import Workflow
    from holdfast.app.workflows.workflow_run import WorkflowRun
    from holdfast.core.errors import (
        AddressRefused,
        AlreadyCompleted,
        AlreadyHandled,
        BatchError,
        BrokerUnavailable,
        Cancel,
        CircuitOpen,
        ConfigurationError,
        DecryptionFailed,
        EncryptionKeyMissing,
        EngineRunning,
        EngineStopping,
        HoldfastError,
        InvalidDuration,
        InvalidKey,
        InvalidName,
        InvalidPayload,
        InvalidSignature,
        JobFailed,
        KeyConflict,
        KeyRequired,
        LeaseLost,
        LockTimeout,
        LogRewound,
        NotFound,
        NoTransaction,
        Outage,
        PayloadTooLarge,
        PermissionDenied,
        RebuildLost,
        RebuildStopped,
        Refused,
        ReservationLost,
        RetryAfter,
        SchemaMismatch,
        ServiceRefused,
        Signal,
        Snooze,
        StoreBusy,
        StoreError,
        StoreLocked,
        StoreReplaced,
        StoreTimeout,
        StoreUnavailable,
        TerminalError,
        TransactionConflict,
        UnreadableRecord,
        UnsupportedConnection,
        WebhookRefused,
        WorkflowFailed,
        WrongDatabase,
    )
    from holdfast.core.events.event import event, upcast
    from holdfast.core.failures.classify import Rules, Verdict
    from holdfast.core.flow import Limit, Queue, Rate
    from holdfast.core.group import GroupSummary
    from holdfast.core.key import job_key, key
    from holdfast.core.message import Message
    from holdfast.core.redaction.redact import redact_logs
    from holdfast.core.retry import RetryPolicy
    from holdfast.core.telemetry.correlation import correlate
    from holdfast.engine.batches.context import BatchContext, BatchItem
    from holdfast.engine.handlers.context import Context
    from holdfast.engine.telemetry.tracing import Tracing
    from holdfast.engine.worker.options import WorkerOptions
    from holdfast.engine.workflows.step import Step
    from holdfast.engine.workflows.step_context import MappedStep
    from holdfast.idempotency.asgi import IdempotencyMiddleware
    from holdfast.idempotency.fastapi import IdempotencyKey
    from holdfast.outbound.breaker import CircuitBreaker
    from holdfast.outbound.budget import RetryBudget
    from holdfast.outbound.circuits import MemoryCircuits, StoreCircuits
    from holdfast.outbound.client import ServiceClient, SyncServiceClient
    from holdfast.outbound.redis_circuits import RedisCircuits
    from holdfast.outbound.retry import with_retry
    from holdfast.outbound.retry_state import Attempt
    from holdfast.outbound.webhooks.options import WebhookOptions
    from holdfast.produce.aggregates import RaisesEvents, collect_events
    from holdfast.produce.immediate import begin_immediate, immediate
    from holdfast.produce.request_ids import RequestIdMiddleware
    from holdfast.stores.connections.durability import DurabilityWarning
    from holdfast.stores.messages.publish import Published
    from holdfast.stores.queries.query import Filter

# Every other public name is an error.
_HOMES = {
    "Group": "app.jobs.group",
    "JobCall": "app.jobs.group",
    "GroupHandle": "app.jobs.group_handle",
    "GroupSummary": "core.group",
    "Holdfast": "app.holdfast",
    "Job": "app.jobs.job",
    "JobHandle": "app.jobs.job_handle",
    "Router": "app.declaration.router",
    "Workflow": "app.workflows.workflow",
    "WorkflowRun": "app.workflows.workflow_run",
    "Rules": "core.failures.classify",
    "Verdict": "core.failures.classify",
    "correlate": "core.telemetry.correlation",
    "event": "core.events.event",
    "upcast": "core.events.event",
    "Limit": "core.flow",
    "Queue": "core.flow",
    "Rate": "core.flow",
    "job_key": "core.key",
    "key": "core.key",
    "Message": "core.message",
    "redact_logs": "core.redaction.redact",
    "RetryPolicy": "core.retry",
    "BatchContext": "engine.batches.context",
    "BatchItem": "engine.batches.context",
    "Context": "engine.handlers.context",
    "WorkerOptions": "engine.worker.options",
    "Tracing": "engine.telemetry.tracing",
    "MappedStep": "engine.workflows.step_context",
    "Step": "engine.workflows.step",
    "IdempotencyMiddleware": "idempotency.asgi",
    "IdempotencyKey": "idempotency.fastapi",
    "CircuitBreaker": "outbound.breaker",
    "RetryBudget": "outbound.budget",
    "MemoryCircuits": "outbound.circuits",
    "StoreCircuits": "outbound.circuits",
    "ServiceClient": "outbound.client",
    "SyncServiceClient": "outbound.client",
    "Attempt": "outbound.retry_state",
    "RedisCircuits": "outbound.redis_circuits",
    "with_retry": "outbound.retry",
    "WebhookOptions": "outbound.webhooks.options",
    "RaisesEvents": "produce.aggregates",
    "collect_events": "produce.aggregates",
    "begin_immediate": "produce.immediate",
    "immediate": "produce.immediate",
    "RequestIdMiddleware": "produce.request_ids",
    "DurabilityWarning": "stores.connections.durability",
    "Published": "stores.messages.publish",
    "Filter": "stores.queries.query",
}

__all__ = [
    "AddressRefused",
    "AlreadyCompleted",
    "AlreadyHandled",
    "Attempt",
    "BatchContext",
    "BatchError",
    "BatchItem",
    "BrokerUnavailable",
    "Cancel",
    "CircuitBreaker",
    "CircuitOpen",
    "ConfigurationError",
    "Context",
    "DecryptionFailed",
    "DurabilityWarning",
    "EncryptionKeyMissing",
    "EngineRunning",
    "EngineStopping",
    "Filter",
    "Group",
    "GroupHandle",
    "GroupSummary",
    "Holdfast",
    "HoldfastError",
    "IdempotencyKey",
    "IdempotencyMiddleware",
    "InvalidDuration",
    "InvalidKey",
    "InvalidName",
    "InvalidPayload",
    "InvalidSignature",
    "Job",
    "JobCall",
    "JobFailed",
    "JobHandle",
    "KeyConflict",
    "KeyRequired",
    "LeaseLost",
    "Limit",
    "LockTimeout",
    "LogRewound",
    "MappedStep",
    "MemoryCircuits",
    "Message",
    "NoTransaction",
    "NotFound",
    "Outage",
    "PayloadTooLarge",
    "PermissionDenied",
    "Published",
    "Queue",
    "RaisesEvents",
    "Rate",
    "RebuildLost",
    "RebuildStopped",
    "RedisCircuits",
    "Refused",
    "RequestIdMiddleware",
    "ReservationLost",
    "RetryAfter",
    "RetryBudget",
    "RetryPolicy",
    "Router",
    "Rules",
    "SchemaMismatch",
    "ServiceClient",
    "ServiceRefused",
    "Signal",
    "Snooze",
    "Step",
    "StoreBusy",
    "StoreCircuits",
    "StoreError",
    "StoreLocked",
    "StoreReplaced",
    "StoreTimeout",
    "StoreUnavailable",
    "SyncServiceClient",
    "TerminalError",
    "Tracing",
    "TransactionConflict",
    "UnreadableRecord",
    "UnsupportedConnection",
    "Verdict",
    "WebhookOptions",
    "WebhookRefused",
    "WorkerOptions",
    "Workflow",
    "WorkflowFailed",
    "WorkflowRun",
    "WrongDatabase",
    "__version__",
    "begin_immediate",
    "collect_events",
    "correlate",
    "event",
    "immediate",
    "job_key",
    "key",
    "redact_logs",
    "upcast",
    "with_retry",
]


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        value = getattr(import_module(f"holdfast.{_HOMES.get(name, 'core.errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
