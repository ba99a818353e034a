"""Holdfast makes work reliable: what was accepted is never lost, and its effect is not applied twice.

Names are loaded when they are first used: importing `holdfast` is quick and needs no extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.app.job import Job
    from holdfast.app.router import Router
    from holdfast.core.classify import Rules, Verdict
    from holdfast.core.correlation import correlate
    from holdfast.core.errors import (
        AlreadyHandled,
        Cancel,
        CircuitOpen,
        ConfigurationError,
        HoldfastError,
        InvalidKey,
        InvalidName,
        InvalidPayload,
        KeyConflict,
        LeaseLost,
        NotFound,
        NoTransaction,
        Outage,
        Refused,
        RetryAfter,
        SchemaMismatch,
        Snooze,
        StoreError,
        StoreUnavailable,
        TerminalError,
        UnsupportedConnection,
    )
    from holdfast.core.event import event, upcast
    from holdfast.core.key import job_key, key
    from holdfast.core.retry import RetryPolicy
    from holdfast.engine.context import Context
    from holdfast.engine.options import WorkerOptions
    from holdfast.stores.publish import Published

_HOMES = {
    "Holdfast": "app.holdfast",
    "Job": "app.job",
    "Router": "app.router",
    "Rules": "core.classify",
    "Verdict": "core.classify",
    "correlate": "core.correlation",
    "AlreadyHandled": "core.errors",
    "Cancel": "core.errors",
    "CircuitOpen": "core.errors",
    "ConfigurationError": "core.errors",
    "HoldfastError": "core.errors",
    "InvalidKey": "core.errors",
    "InvalidName": "core.errors",
    "InvalidPayload": "core.errors",
    "KeyConflict": "core.errors",
    "LeaseLost": "core.errors",
    "NoTransaction": "core.errors",
    "NotFound": "core.errors",
    "Outage": "core.errors",
    "Refused": "core.errors",
    "RetryAfter": "core.errors",
    "SchemaMismatch": "core.errors",
    "Snooze": "core.errors",
    "StoreError": "core.errors",
    "StoreUnavailable": "core.errors",
    "TerminalError": "core.errors",
    "UnsupportedConnection": "core.errors",
    "event": "core.event",
    "upcast": "core.event",
    "job_key": "core.key",
    "key": "core.key",
    "RetryPolicy": "core.retry",
    "Context": "engine.context",
    "WorkerOptions": "engine.options",
    "Published": "stores.publish",
}

__all__ = [
    "AlreadyHandled",
    "Cancel",
    "CircuitOpen",
    "ConfigurationError",
    "Context",
    "Holdfast",
    "HoldfastError",
    "InvalidKey",
    "InvalidName",
    "InvalidPayload",
    "Job",
    "KeyConflict",
    "LeaseLost",
    "NoTransaction",
    "NotFound",
    "Outage",
    "Published",
    "Refused",
    "RetryAfter",
    "RetryPolicy",
    "Router",
    "Rules",
    "SchemaMismatch",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "TerminalError",
    "UnsupportedConnection",
    "Verdict",
    "WorkerOptions",
    "__version__",
    "correlate",
    "event",
    "job_key",
    "key",
    "upcast",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
