"""Options that every command accepts: store, app, actor, output format and logs."""

import contextlib
import getpass
import os
import socket
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.core.errors import ConfigurationError, HoldfastError, Refused, StoreUnavailable
from holdfast.interfaces.cli.examples import examples_of
from holdfast.interfaces.cli.exit_codes import AppFailed, ExitCode

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.ops.service import SyncOperations
    from holdfast.stores.protocol import Store

FORMATS = ("table", "json", "jsonl")
C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Program:
    """Another program that runs this command line, such as `manage.py holdfast`. Printed commands are written for it."""

    name: str
    app: str
    """The app that it always uses, as for --app."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands that it has in another form, by the form of `holdfast`."""


@dataclass
class Settings:
    """The shared options of one command line. They may be placed before or after the subcommand."""

    dsn: str | None = None
    schema: str | None = None
    app: str | None = None
    format: str = "table"
    actor: str | None = None
    yes: bool = False
    log_format: str = "auto"
    log_level: str = "info"
    opened: "Store | None" = None
    program: Program | None = None

    @property
    def tabular(self) -> bool:
        return self.format == "table"

    def who(self) -> str:
        """The actor for the audit log: --actor, else user@host."""
        if self.actor is not None:
            if not self.actor.strip():
                raise ConfigurationError("--actor must not be empty; the audit log records it with every action")
            return self.actor
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # in a container the user may have no name
            user = f"uid{os.getuid()}"
        return f"{user}@{socket.gethostname()}"

    @property
    def uses_app(self) -> bool:
        """Whether this command imports the app: --app was passed, or no DSN was given."""
        return self.app is not None or not (self.dsn or os.environ.get("HOLDFAST_DSN"))

    def app_spec(self) -> str | None:
        """The app: from --app, HOLDFAST_APP, or [tool.holdfast] in the nearest pyproject.toml."""
        return self.app or os.environ.get("HOLDFAST_APP") or _configured_app()

    def load_app(self) -> "Holdfast":
        """Imports the app. This runs user code."""
        from holdfast.app.worker.app_loader import load_app

        spec = self.app_spec()
        if spec is None:
            raise click.UsageError(
                "no app is configured; pass --app module:attribute, set HOLDFAST_APP, or write app = "
                '"module:attribute" under [tool.holdfast] in pyproject.toml'
            )
        try:
            return load_app(spec)
        except HoldfastError as error:
            raise AppFailed(str(error)) from error
        except SystemExit as error:
            raise AppFailed(
                f"app {spec!r} cannot be loaded: importing it called sys.exit({error.code}); call sys.exit only under "
                "`if __name__ == '__main__'`"
            ) from error

    def store(self, *, create: bool = False) -> "Store":
        """Opens the store without connecting. A SQLite file must exist unless `create` is set."""
        if self.opened is None:
            self.opened = self._open()
            click.get_current_context().call_on_close(self.opened.close_sync)
        path = getattr(self.opened, "path", None)
        if not create and isinstance(path, Path) and not path.exists():
            raise StoreUnavailable(
                self.opened.name,
                f"{path.absolute()} does not exist; if the path is right, create the file with `holdfast schema migrate`",
            )
        return self.opened

    def _open(self) -> "Store":
        from holdfast.runtime.store_factory import open_store, use_cipher

        dsn = self.dsn or os.environ.get("HOLDFAST_DSN")
        if dsn:
            store = open_store(dsn, self._schema(), role="holdfast-cli", pool_size=2)
            # The app has the keys of encrypted payloads; without --app they are shown encrypted.
            return store if self.app is None else use_cipher(store, self.load_app().cipher)
        if self.app_spec() is None:
            raise click.UsageError(
                "no store is configured; pass --dsn, set HOLDFAST_DSN (sqlite:///path or postgresql://…), or pass "
                "--app module:attribute"
            )
        app = self.load_app()
        if self.schema in (None, app.schema):
            return app.store
        return use_cipher(open_store(app.dsn, self.schema or app.schema), app.cipher)

    def _schema(self) -> str:
        """The schema of a store whose DSN is known: --schema, else that of the configured app, which is imported for it.

        Workers of the app use its schema, so another default would silently read and write another store.
        """
        if self.schema is not None:
            return self.schema
        try:
            if self.app_spec() is None:
                return "holdfast"
        except ConfigurationError:  # pyproject.toml cannot be read or is not trusted, and no option asks for its app
            return "holdfast"
        # What the code prints on import is not part of the output.
        with contextlib.redirect_stdout(sys.stderr):
            try:
                return self.load_app().schema
            except AppFailed as error:
                if self.app is not None:
                    raise
                raise AppFailed(
                    f"{error}. The schema of the store is that of the app; pass --schema to use the store without the app"
                ) from error

    def operations(self, *, create: bool = False, check: bool = True) -> "SyncOperations":
        """Opens the operations on the store. With `check` it raises if the schema version does not match this release."""
        from holdfast.ops.service import SyncOperations

        store = self.store(create=create)
        if check:
            store.check_schema()
        if self.uses_app:
            return SyncOperations(store, check_signal=self._check_signal)
        return SyncOperations(store)

    def _check_signal(self, workflow: str, signal: str, payload: object) -> None:
        self.load_app().ops.check_signal(workflow, signal, payload)

    def confirm(self, question: str, item: str) -> None:
        """Returns if --yes was passed or the user confirms. Raises `Refused` if stdin is not a terminal."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            can_preview = any(one.name == "dry_run" for one in click.get_current_context().command.params)
            remedy = "pass --yes, or preview with --dry-run" if can_preview else "pass --yes"
            raise Refused(question, item, "not confirmed, and stdin is not a terminal", remedy)
        if not click.confirm(f"{question} {item}?", err=True):
            click.echo("nothing was changed", err=True)
            raise click.exceptions.Exit(ExitCode.REFUSED)


def settings() -> Settings:
    """The settings of the running command."""
    return click.get_current_context().ensure_object(Settings)


def shared_options(*, acts: bool, logs: bool = False) -> list[click.Parameter]:
    """The options that every command accepts. Options without effect on a command are hidden from its help."""
    return [
        _option("--dsn", metavar="DSN", help="Store: sqlite:///path or postgresql://…  [env: HOLDFAST_DSN]"),
        _option(
            "--schema",
            metavar="NAME",
            help="Schema (PostgreSQL) or table prefix (SQLite).  [default: the app's, else holdfast]",
        ),
        _option("--app", metavar="SPEC", help="App: module:attribute or file.py:attribute.  [env: HOLDFAST_APP]"),
        _option("--format", type=click.Choice(FORMATS), help="Output format.  [default: table]"),
        _option("--actor", metavar="NAME", hidden=not acts, help="Actor for the audit log.  [default: user@host]"),
        _option(
            "--yes", "-y", is_flag=True, hidden=not acts, help="Skip confirmation of bulk and destructive actions."
        ),
        _option(
            "--log-format",
            type=click.Choice(("auto", "console", "json")),
            hidden=not logs,
            envvar="HOLDFAST_LOG_FORMAT",
            help="Log format on stderr. auto: console on a terminal, else json.  [env: HOLDFAST_LOG_FORMAT]",
        ),
        _option(
            "--log-level",
            type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
            hidden=not logs,
            envvar="HOLDFAST_LOG_LEVEL",
            help="Minimum log level.  [default: info; env: HOLDFAST_LOG_LEVEL]",
        ),
    ]


def _option(*names: str, **more: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_store_value, **more)


def _store_value(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False) and param.name is not None:
        setattr(ctx.ensure_object(Settings), param.name, value)


class ExampledCommand(click.Command):
    """A command whose help ends with its examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        names: list[str] = []
        while ctx.parent is not None:
            names.insert(0, ctx.info_name or "")
            ctx = ctx.parent
        if lines := examples_of(" ".join(names)):
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"  {line}\n")


def group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Decorator: turns a function into a command group that also accepts the shared options after its name."""

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
    """Decorator: turns a function into a command with the shared options. Its return value is the exit code."""

    def decorate(function: C) -> click.Command:
        made: click.Command = click.command(cls=ExampledCommand, **more)(function)
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
                f"{file} names the app {str(found)[:200]!r} but is owned by another user, so it is not imported; pass --app or "
                "set HOLDFAST_APP"
            )
        return str(found)
    return None


def _is_trusted(file: Path, here: Path) -> bool:
    """Whether a file is owned by this user or root, or by the owner of the working directory if it lies there.

    The file names code to import, and in a shared directory such as /tmp another user could have created it.
    """
    owners = {os.getuid(), 0} | ({here.stat().st_uid} if file.parent == here else set())
    return {file.stat().st_uid, file.lstat().st_uid} <= owners
