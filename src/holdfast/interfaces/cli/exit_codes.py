"""How a command ends when it does not go well: one line for people, one code for scripts, never a traceback."""

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
from holdfast.core.mask import mask


class ExitCode(IntEnum):
    """The exit codes, as documented."""

    DONE = 0
    PARTIAL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    APP = 6
    INTERRUPTED = 130


class AppFailed(HoldfastError):
    """The app that was named could not be imported."""


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
    """The exit code an error ends with."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.PARTIAL)


def describe(error: BaseException) -> str:
    """An error in one line: what happened, to which item, what to do next; no secrets."""
    if isinstance(error, click.ClickException):
        text = error.format_message().rstrip(".")
        text = text[:1].lower() + text[1:]
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f"{' See' if text.endswith(('?', '?)')) else '; see'} `{error.ctx.command_path} --help`"
    elif isinstance(error, HoldfastError):
        text = str(error) or type(error).__name__
    else:
        text = f"{type(error).__name__}: {error}; this is a bug in holdfast, --log-level debug shows where"
    return mask(" ".join(text.split()))
