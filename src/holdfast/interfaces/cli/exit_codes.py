"""Exit codes and error lines of the command line."""

from enum import IntEnum

import click

from holdfast.core.errors import (
    AddressRefused,
    ConfigurationError,
    EngineRunning,
    HoldfastError,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    KeyConflict,
    LockTimeout,
    NotFound,
    PermissionDenied,
    Refused,
    StoreBusy,
    StoreError,
)
from holdfast.core.redaction.mask import mask


class ExitCode(IntEnum):
    """Exit codes. They are part of the documented interface."""

    DONE = 0
    PARTIAL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    APP = 6
    INTERRUPTED = 130


class AppFailed(HoldfastError):
    """The app cannot be imported."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (AppFailed, ExitCode.APP),
    (NotFound, ExitCode.NOT_FOUND),
    (Refused, ExitCode.REFUSED),
    (AddressRefused, ExitCode.REFUSED),
    (KeyConflict, ExitCode.REFUSED),
    (EngineRunning, ExitCode.REFUSED),
    (LockTimeout, ExitCode.REFUSED),
    (StoreBusy, ExitCode.REFUSED),
    (PermissionDenied, ExitCode.REFUSED),
    (StoreError, ExitCode.UNREACHABLE),
    (ConfigurationError, ExitCode.USAGE),
    (InvalidName, ExitCode.USAGE),
    (InvalidPayload, ExitCode.USAGE),
    (InvalidKey, ExitCode.USAGE),
    (click.UsageError, ExitCode.USAGE),
)


def code_of(error: BaseException) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.PARTIAL)


def describe(error: BaseException) -> str:
    """Formats an error as one line without secrets."""
    if isinstance(error, click.ClickException):
        text = error.format_message().rstrip(".")
        text = text[:1].lower() + text[1:]
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f"{' See' if text.endswith(('?', '?)')) else '; see'} `{error.ctx.command_path} --help`"
    elif isinstance(error, HoldfastError):
        text = str(error) or type(error).__name__
    else:
        text = f"{type(error).__name__}: {error}; this is a bug in holdfast. Run again with --log-level debug for the traceback"
    return mask(" ".join(text.split()))
