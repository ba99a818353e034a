"""Every command and option that an error text, a page or the README names exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.interfaces.cli import main

ROOT = Path(__file__).parents[2]
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "docs" / "llms.txt",
    *sorted((ROOT / "src" / "holdfast").rglob("*.py")),
    *sorted((ROOT / "src" / "holdfast").rglob("*.html")),
]
QUOTED = re.compile(r"`+(?:manage\.py )?(holdfast [^`\n]*)`+")
PROMPT = re.compile(r"^(?:\$ |# |ExecStart=\S*/)?(?:python manage\.py )?(holdfast [a-z].*)$", re.MULTILINE)
CONSOLE = re.compile(r"```(?:console|bash|sh|ini)?\n(.*?)```", re.DOTALL)
CODE_VALUE = re.compile(r"\{[^{}]*\}")


def named_commands(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.name == "command-line.md":  # made from the commands themselves
        return
    yield from QUOTED.findall(text)
    if path.suffix == ".md":
        for block in CONSOLE.findall(text):
            yield from PROMPT.findall(block)


def problem(line: str) -> str | None:
    """What is wrong with a command line; None if its command and options exist."""
    shown = CODE_VALUE.sub("VALUE", line.partition(" #")[0].partition(" | ")[0].replace("…", "").replace("...", ""))
    try:
        words = shlex.split(shown)[1:]
    except ValueError:
        words = shown.split()[1:]
    command: click.Command = main
    context = click.Context(main)
    while words and isinstance(command, click.Group) and not words[0].startswith(("-", "VALUE")):
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    known = {"--help", "--VALUE", "--"}
    for one in (command, main):
        known.update(*(parameter.opts + parameter.secondary_opts for parameter in one.params))
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"no option {', '.join(unknown)}" if unknown else None


def test_every_command_that_a_text_names_exists() -> None:
    wrong = {
        (str(path.relative_to(ROOT)), line): found
        for path in TEXTS
        for line in named_commands(path)
        if (found := problem(line)) is not None
    }
    assert not wrong


def test_commands_are_found_in_the_texts() -> None:
    assert sum(len(list(named_commands(path))) for path in TEXTS) > 150
    assert problem("holdfast dlq shwo 7") == "no command 'shwo'"
    assert problem("holdfast replay --goup 7 --limit 3") == "no option --goup"
    assert problem("holdfast replay --group {fingerprint} --reason 'x'") is None
