"""The reference pages and the guides name every command, option, setting, metric and API path, and no other."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import click

import holdfast
from holdfast import Holdfast, WorkerOptions
from holdfast.app.declaration.handler_options import HandlerOptions
from holdfast.core import errors
from holdfast.interfaces.api import commands as api_commands
from holdfast.interfaces.api import plans, queries
from tests.observe.test_dashboards import exported
from tests.support import page_list, python_reference
from tests.support.command_reference import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INTERNAL = {"HOLDFAST_COMPLETE", "HOLDFAST_DEMO", "HOLDFAST_PARENT", "HOLDFAST_ENGINE_FAMILY"}
"""Variables that Holdfast and the completion script set for child processes."""

COMMANDS = {path.removeprefix("holdfast").strip(): command for path, command in commands()}


def section(page: str, heading: str) -> str:
    _, _, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {heading}")
    return rest.partition("\n## ")[0]


def listed(text: str) -> set[str]:
    """The names in the first column of a table."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_reference_lists_exactly_the_commands_and_their_options() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in re.split(r"\n##+ holdfast ", page)[1:]}
    found = {" ".join(re.findall(r"(?:^|(?<= ))[a-z][a-z-]*", title)): text for title, text in parts.items()}
    assert sorted(found) == sorted(filter(None, COMMANDS)), "run `python -m tests.support.command_reference`"
    shared = set(re.findall(r"`[^`]*?(--[a-z-]+)", page.partition("\n## holdfast ")[0]))
    for name, text in found.items():
        shown = [one for one in COMMANDS[name].params if isinstance(one, click.Option) and not one.hidden]
        expected = {one.opts[0]: (one.help or "").partition("  [")[0].replace("|", ", ") for one in shown}
        missing = [option for option, help in expected.items() if option not in shared and help not in text]
        assert missing == [], f"{name}: run `python -m tests.support.command_reference`"
        rows = set(re.findall(r"^\| `(?:-[a-z], )?(--[a-z-]+)", text, re.MULTILINE))
        assert rows == expected.keys() - shared, f"{name}: run `python -m tests.support.command_reference`"


def test_settings_are_listed() -> None:
    app = inspect.signature(Holdfast).parameters.keys()
    consumer = inspect.signature(Holdfast.consumer).parameters
    tables: Mapping[str, set[str]] = {
        "App: ": set(app),
        "Worker: ": {field.name for field in fields(WorkerOptions)},
        "Handlers": set(HandlerOptions.__annotations__),
        "Consumers: ": {name for name, one in consumer.items() if one.kind is inspect.Parameter.KEYWORD_ONLY},
    }
    assert {heading: listed(section("reference/settings.md", heading)) for heading in tables} == tables


def test_environment_variables_are_listed() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"HOLDFAST_[A-Z_]*[A-Z]", source)) - INTERNAL
    assert listed(section("reference/settings.md", "Environment variables")) == read


def test_metrics_are_listed() -> None:
    shown = {name.partition("{")[0] for name in listed(section("how-to/observe.md", "Metrics"))}
    assert shown == {family.name for family in exported()}


def test_api_paths_are_listed() -> None:
    endpoints = [*queries.ENDPOINTS, *api_commands.ENDPOINTS, *plans.ENDPOINTS]
    shown = {_path(path) for path in listed(section("how-to/http-api.md", "Queries"))}
    assert shown == {_path(one.path) for one in endpoints if one.method == "GET"}
    lines = [line for line in section("how-to/http-api.md", "Actions").splitlines() if "/…`" in line]
    rows = [re.findall(r"`([^`]+)`", line) for line in lines]
    actions = {_path(prefix.replace("…", verb)) for prefix, *verbs in rows for verb in verbs}
    assert actions == {path for one in endpoints if one.method == "POST" and "/" in (path := _path(one.path))}


def _path(path: str) -> str:
    return re.sub(r"\{\w+\}", "{…}", path.partition("?")[0]).strip("/")


def test_the_python_reference_lists_exactly_the_public_names() -> None:
    names = sorted(set(holdfast.__all__) - {"__version__"})
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "python").glob("*.md")]
    assert sorted(name for page in pages for name in re.findall(r"^::: holdfast\.(\w+)$", page, re.MULTILINE)) == names
    overview = re.findall(
        r"`(\w+)`", (DOCS / "reference" / "python.md").read_text(encoding="utf-8").partition("| page |")[2]
    )
    assert sorted({*overview} - {"AesGcm", "Cipher"}) == names


def test_the_python_pages_have_the_first_sentence_of_each_name_for_readers_of_the_markdown() -> None:
    for page in python_reference.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == python_reference.written(page), "run `python -m tests.support.python_reference`"
        assert not re.findall(r"^\| `\w+` \| *\|$", text, re.MULTILINE), "a public name has no docstring"


def test_the_page_of_errors_lists_every_error() -> None:
    assert listed((DOCS / "reference" / "errors.md").read_text(encoding="utf-8")) == set(errors.__all__)


def test_each_page_is_in_the_navigation() -> None:
    entries = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(entries) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_page_list_for_agents_is_current() -> None:
    assert page_list.TARGET.read_text(encoding="utf-8") == page_list.written(), (
        "run `python -m tests.support.page_list`"
    )
