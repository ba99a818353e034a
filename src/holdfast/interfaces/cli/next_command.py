"""Commands in printed texts, with the options of this command line that chose the store, so that they can be copied."""

import re
import shlex
from urllib.parse import urlsplit

import click

from holdfast.core.redaction.mask import mask
from holdfast.interfaces.cli.settings import Settings

# In backquotes, or at the end of a note such as `next: holdfast plans start ID`.
_COMMAND = re.compile(r"(?<=`)holdfast [^`]+(?=`)|(?<=: )holdfast [^`]+$")
# The place of an app in a hint; another program has its own.
_ANY_APP = re.compile(r" --app module:attr(?:ibute)?\b")
# A worker has the store of its app, and these commands have none.
_WITHOUT_STORE = ("worker", "demo", "drill", "completion", "version")


def with_store(text: str, settings: Settings | None = None) -> str:
    """The text with `--dsn`, `--schema` and `--app` added to each command in it, if this command line has them."""
    return _COMMAND.sub(lambda found: next_command(found[0], settings), text)


def next_command(line: str, settings: Settings | None = None) -> str:
    """A command with the options that chose the store. A DSN with a password is not repeated: it is shown as `…`."""
    settings = settings or _running()
    return line if settings is None else _in_program(_with_options(line, settings), settings)


def _with_options(line: str, settings: Settings) -> str:
    words = line.split()
    if len(words) < 2 or words[1] in _WITHOUT_STORE or "--help" in words:
        return line
    app = None if settings.program is not None and settings.app == settings.program.app else settings.app
    given = {"--dsn": settings.dsn and _without_password(settings.dsn)}
    given |= {"--schema": _quoted(settings.schema), "--app": _quoted(app)}
    options = [f"{name} {value}" for name, value in given.items() if value and name not in words]
    return " ".join([line, *options])


def _in_program(line: str, settings: Settings) -> str:
    """The command as it is written for the program that runs the command line, such as `manage.py holdfast`."""
    if settings.program is None:
        return line
    if line in settings.program.commands:
        return settings.program.commands[line]
    return settings.program.name + _ANY_APP.sub("", line).removeprefix("holdfast")


def _without_password(dsn: str) -> str:
    try:
        is_secret = mask(dsn) != dsn or urlsplit(dsn).password is not None
    except ValueError:
        is_secret = True
    return "…" if is_secret else shlex.quote(dsn)


def _quoted(value: str | None) -> str | None:
    return value and shlex.quote(value)


def _running() -> Settings | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.ensure_object(Settings)
