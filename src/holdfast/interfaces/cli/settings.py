"""What every command shares: which store, which app, who acts, how output looks."""

import getpass
import os
import socket
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.core.errors import ConfigurationError, HoldfastError, Refused, StoreUnavailable
from holdfast.interfaces.cli.exit_codes import AppFailed, ExitCode

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.ops.service import SyncOperations
    from holdfast.stores.protocol import Store

FORMATS = ("table", "json", "jsonl")
C = TypeVar("C", bound=Callable[..., Any])


@dataclass
class Settings:
    """The shared options of one command line, wherever on it they stood."""

    dsn: str | None = None
    schema: str | None = None
    app: str | None = None
    format: str = "table"
    actor: str | None = None
    yes: bool = False
    log_format: str = "auto"
    log_level: str = "info"
    opened: "Store | None" = None

    @property
    def tabular(self) -> bool:
        return self.format == "table"

    def who(self) -> str:
        """Who acts: as given, or user@host."""
        if self.actor is not None:
            if not self.actor.strip():
                raise ConfigurationError("--actor is empty; every action names who did it")
            return self.actor
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may run a user that has no name
            user = f"uid{os.getuid()}"
        return f"{user}@{socket.gethostname()}"

    @property
    def uses_app(self) -> bool:
        """Whether this command imports the app: it was named with --app, or the store is the app's."""
        return self.app is not None or not (self.dsn or os.environ.get("HOLDFAST_DSN"))

    def app_spec(self) -> str | None:
        """The app that was named: by --app, HOLDFAST_APP, or [tool.holdfast] in the nearest pyproject.toml."""
        return self.app or os.environ.get("HOLDFAST_APP") or _configured_app()

    def load_app(self) -> "Holdfast":
        """Imports the app that was named; user code runs."""
        from holdfast.app.locate import load_app

        spec = self.app_spec()
        if spec is None:
            raise click.UsageError(
                "no app was named; pass --app module:attribute, set HOLDFAST_APP, or write app = "
                '"module:attribute" under [tool.holdfast] in pyproject.toml'
            )
        try:
            return load_app(spec)
        except HoldfastError as error:
            raise AppFailed(str(error)) from error
        except SystemExit as error:
            raise AppFailed(f"app {spec!r} cannot be loaded: importing it called sys.exit({error.code})") from error

    def store(self, *, make: bool = False) -> "Store":
        """The store that was named, nothing connected yet. A SQLite file must exist unless it is to be made."""
        if self.opened is None:
            self.opened = self._open()
            click.get_current_context().call_on_close(self.opened.close_sync)
        path = getattr(self.opened, "path", None)
        if not make and isinstance(path, Path) and not path.exists():
            raise StoreUnavailable(self.opened.name, "there is no such file; `holdfast schema migrate` makes it")
        return self.opened

    def _open(self) -> "Store":
        from holdfast.app.opening import open_store

        dsn = self.dsn or os.environ.get("HOLDFAST_DSN")
        if dsn:
            return open_store(dsn, self.schema or "holdfast", role="holdfast-cli", pool_size=2)
        if self.app_spec() is None:
            raise click.UsageError(
                "no store was named; pass --dsn, set HOLDFAST_DSN (sqlite:///path or postgresql://…), or name an app "
                "with --app module:attribute"
            )
        app = self.load_app()
        return app.store if self.schema in (None, app.schema) else open_store(app.dsn, self.schema or app.schema)

    def operations(self, *, make: bool = False, check: bool = True) -> "SyncOperations":
        """The operations on the store that was named; its tables fit this release unless nobody cares."""
        from holdfast.ops.service import SyncOperations

        store = self.store(make=make)
        if check:
            store.check_schema()
        return SyncOperations(store)

    def confirm(self, question: str, item: str) -> None:
        """Goes on if --yes was given or a person says so; `Refused` where nobody can be asked."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise Refused(
                question, item, "not confirmed, and there is no terminal to ask on", "add --yes, or look with --dry-run"
            )
        if not click.confirm(f"{question} {item}?", err=True):
            click.echo("nothing was changed", err=True)
            raise click.exceptions.Exit(ExitCode.REFUSED)


def settings() -> Settings:
    """The settings of the command that runs."""
    return click.get_current_context().ensure_object(Settings)


def shared_options(*, acts: bool, logs: bool = False) -> list[click.Parameter]:
    """The options every command takes. Those that mean nothing to it are accepted and not shown."""
    return [
        _option("--dsn", metavar="DSN", help="The store: sqlite:///path or postgresql://…  [env: HOLDFAST_DSN]"),
        _option("--schema", metavar="NAME", help="Schema (PostgreSQL) or table prefix (SQLite).  [default: holdfast]"),
        _option(
            "--app", metavar="SPEC", help="The app, as module:attribute or file.py:attribute.  [env: HOLDFAST_APP]"
        ),
        _option("--format", type=click.Choice(FORMATS), help="How data is printed.  [default: table]"),
        _option("--actor", metavar="NAME", hidden=not acts, help="Who acts, for the audit.  [default: user@host]"),
        _option("--yes", "-y", is_flag=True, hidden=not acts, help="Do not ask before bulk or destructive actions."),
        _option(
            "--log-format",
            type=click.Choice(("auto", "console", "json")),
            hidden=not logs,
            envvar="HOLDFAST_LOG_FORMAT",
            help="How logs are written to stderr; auto is console on a terminal.  [env: HOLDFAST_LOG_FORMAT]",
        ),
        _option(
            "--log-level",
            type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
            hidden=not logs,
            envvar="HOLDFAST_LOG_LEVEL",
            help="What is logged.  [default: info; env: HOLDFAST_LOG_LEVEL]",
        ),
    ]


def _option(*names: str, **more: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_keep, **more)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False) and param.name is not None:
        setattr(ctx.ensure_object(Settings), param.name, value)


def group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Makes a function the group of commands about one thing; the shared options may stand after its name, too."""

    def decorate(function: Callable[[], None]) -> click.Group:
        made = click.group(name=name)(function)
        for option in shared_options(acts=False):
            assert isinstance(option, click.Option)
            option.hidden = True
            made.params.append(option)
        return made

    return decorate


def command(
    parent: click.Group | None = None, *, acts: bool = False, logs: bool = False, **more: Any
) -> Callable[[C], click.Command]:
    """Makes a function a command that takes the shared options too; what it returns is its exit code."""

    def decorate(function: C) -> click.Command:
        made: click.Command = click.command(**more)(function)
        made.params.extend(shared_options(acts=acts, logs=logs))
        if parent is not None:
            parent.add_command(made)
        return made

    return decorate


def _configured_app() -> str | None:
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("holdfast", {}).get("app")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from None
        if found is None:
            return None
        if not _is_trusted(file, here):
            raise ConfigurationError(
                f"{file} names the app {str(found)[:200]!r} but belongs to another user, so it is not imported; pass --app or "
                "set HOLDFAST_APP"
            )
        return str(found)
    return None


def _is_trusted(file: Path, here: Path) -> bool:
    """Whether a file that makes code run belongs to this user, to root, or to the owner of the working directory if it
    is there: in a shared folder such as /tmp another user could have put it."""
    owners = {os.getuid(), 0} | ({here.stat().st_uid} if file.parent == here else set())
    return {file.stat().st_uid, file.lstat().st_uid} <= owners
