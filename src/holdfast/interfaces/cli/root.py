"""The root command: imports subcommands on use, and turns every error into one line and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from holdfast._version import __version__
from holdfast.core.errors import HoldfastError
from holdfast.interfaces.cli.exit_codes import ExitCode, code_of, describe
from holdfast.interfaces.cli.next_command import with_store
from holdfast.interfaces.cli.output import until_reader_is_gone
from holdfast.interfaces.cli.settings import Settings, shared_options
from holdfast.interfaces.presentation.formatting import printable

# The module of each command, imported on first use, in the order of the help. The command is `cli` in the module of its
# name, else it has its name.
_COMMANDS = {
    "demo": "system.demo",
    "worker": "system.worker",
    "console": "system.console",
    "publish": "deliveries.publish",
    "enqueue": "deliveries.publish",
    "replay": "deliveries.replay",
    "search": "deliveries.search",
    "dlq": "deliveries.dlq",
    "deliveries": "deliveries.deliveries",
    "messages": "deliveries.messages",
    "jobs": "handlers.jobs",
    "queues": "handlers.resources",
    "consumers": "handlers.consumers",
    "projectors": "handlers.projectors",
    "workflows": "handlers.workflows",
    "groups": "handlers.groups",
    "schedules": "handlers.schedules",
    "breakers": "handlers.resources",
    "webhooks": "integrations.webhooks",
    "idempotency": "integrations.idempotency",
    "workers": "handlers.resources",
    "stats": "system.stats",
    "top": "system.top",
    "tail": "deliveries.tail",
    "doctor": "system.doctor",
    "schema": "system.schema",
    "audit": "system.audit",
    "plans": "deliveries.plans",
    "tokens": "system.tokens",
    "drill": "system.drill",
    "mcp": "system.mcp",
    "prune": "deliveries.prune",
    "encryption": "integrations.encryption",
    "completion": "completion",
    "version": "system.version",
}
_PACKAGE = "holdfast.interfaces.cli"

# Raised since click 8.2; earlier versions print the help themselves.
_NO_ARGUMENTS: tuple[type[Exception], ...] = tuple(filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)]))


class Root(click.Group):
    """`holdfast`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _COMMANDS.get(cmd_name)
        if name is None:
            return None
        module = import_module(f"{_PACKAGE}.{name}")
        command: click.Command = getattr(module, "cli" if name.split(".")[-1] == cmd_name else cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click suggests commands that are loaded, and ours are loaded on use.
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-") and (near := get_close_matches(name, _COMMANDS, n=1)):
            ctx.fail(f"no such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        invoke = super().invoke
        return until_reader_is_gone(lambda: invoke(ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Runs a command line and exits the process with its exit code."""
        settings = extra.setdefault("obj", Settings())
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            code = ExitCode.INTERRUPTED
        except (HoldfastError, click.ClickException) as error:
            code = _help(error) if isinstance(error, _NO_ARGUMENTS) else _failed(error, settings)
        except Exception as error:  # noqa: BLE001
            if settings.log_level == "debug":
                traceback.print_exc()
            code = _failed(error, settings)
        sys.exit(int(code or 0))


def _help(error: Exception) -> ExitCode:
    """Prints the help of a command that was called without arguments. This is not an error."""
    context = getattr(error, "ctx", None)
    assert isinstance(context, click.Context)
    click.echo(context.get_help())
    return ExitCode.DONE


def _failed(error: Exception, settings: Settings) -> ExitCode:
    label = click.style("error:", fg="red", bold=True)
    text = printable(with_store(describe(error), settings))
    click.echo(f"{label} {text}", err=True, color=False if os.environ.get("NO_COLOR") else None)
    return code_of(error)


@click.group(
    cls=Root,
    params=shared_options(acts=True, logs=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=True,
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def main() -> None:
    """Reliable events, jobs and messages: run workers, inspect deliveries, and replay dead letters.

    The store comes from --dsn, HOLDFAST_DSN or the app, and its schema from --schema or the app. Operator commands need
    only a store. The options below may be placed before or after a command.
    """
