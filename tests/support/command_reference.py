"""Renders docs/reference/command-line.md from the commands: `python -m tests.support.command_reference`."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.interfaces.cli import main
from holdfast.interfaces.cli.examples import examples_of
from holdfast.interfaces.cli.settings import shared_options

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
INTRODUCTION = """# Command line

Every command and option of `holdfast`, as `--help` shows them. This page is generated: `python -m tests.support.command_reference`.

Data goes to stdout, notes and errors to stderr. The exit codes are stable:

| code | meaning |
|---|---|
| 0 | done |
| 1 | partly done, or a check failed |
| 2 | wrong usage or invalid input |
| 3 | not found |
| 4 | refused: the state of the item, a lock or a missing permission does not allow it |
| 5 | the store cannot be reached |
| 6 | the app cannot be imported |
| 130 | interrupted |

## Options of every command

They may be placed before or after a command. `--actor` and `--yes` have an effect on commands that change something, `--log-format` and `--log-level`
on commands that log."""


def commands(command: click.Command = main, path: str = "holdfast") -> Iterator[tuple[str, click.Command]]:
    """All groups and commands by their full name, in the order of the help."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def render() -> str:
    shared = shared_options(acts=True, logs=True)
    names = {option.opts[0] for option in shared}
    parts = [INTRODUCTION, *_table(shared)]
    for path, command in commands():
        if command is main:
            continue
        level = "##" if path.count(" ") == 1 else "###"
        own = [one for one in command.params if one.opts[0] not in names]
        arguments = "".join(
            f" {one.make_metavar(click.Context(command))}" for one in own if isinstance(one, click.Argument)
        )
        parts += ["", f"{level} {path}{arguments}", "", _text(command)]
        if lines := [] if isinstance(command, click.Group) else examples_of(path.removeprefix("holdfast ")):
            parts += ["", "```console", *lines, "```"]
        parts += _table(own)
    return "\n".join(parts) + "\n"


def _text(command: click.Command) -> str:
    """The help; paragraphs that keep their line breaks are examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    shown = []
    for paragraph in paragraphs:
        if paragraph.startswith("\b"):
            shown.append("```console\n" + inspect.cleandoc(paragraph[2:]) + "\n```")
        else:
            shown.append(" ".join(paragraph.split()).replace("<", "\\<"))
    return "\n\n".join(shown)


def _table(params: list[click.Parameter]) -> Iterator[str]:
    context = click.Context(click.Command("holdfast"))
    shown = [one.get_help_record(context) for one in params if isinstance(one, click.Option)]
    if any(shown):
        yield "\n| option | meaning |\n|---|---|"
    for record in filter(None, shown):
        names, meaning = (text.replace("|", ", ") for text in record)
        yield f"| `{names}` | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
