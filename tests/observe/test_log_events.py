"""docs/reference/log-events.md lists every event that the source logs, with its levels and loggers, and no other event."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
PAGE = ROOT / "docs" / "reference" / "log-events.md"
LEVELS = ("debug", "info", "warning", "error")
NAME = re.compile(r"[a-z]+( [a-z]+){0,3}")

Entry = tuple[frozenset[str], frozenset[str]]
"""The levels and the loggers of an event."""


def test_the_table_lists_exactly_the_events_that_are_logged() -> None:
    logged, listed = logged_events(), {row[0]: row[1] for row in table()}
    assert len(logged) > 90, "the source was not parsed"
    assert sorted(logged.keys() - listed.keys()) == [], "missing from the table"
    assert sorted(listed.keys() - logged.keys()) == [], "in the table, but not logged"
    assert listed == logged, "a level or a logger differs"


def test_event_names_are_short_and_in_lower_case() -> None:
    assert [name for name in logged_events() if not NAME.fullmatch(name)] == []


def test_each_event_is_listed_once_in_order_with_a_meaning_and_an_action() -> None:
    names = [row[0] for row in table()]
    assert names == sorted(set(names))
    assert [name for name, _, meaning, action in table() if not (meaning and action)] == []


def test_an_event_name_that_is_not_a_literal_is_found() -> None:
    tree = ast.parse('log = get_logger("holdfast.x")\nlog.info(change.name)')
    assert [name for name, _, _ in calls(tree)] == ["<change.name>"]


def table() -> list[tuple[str, Entry, str, str]]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            event, levels, loggers, meaning, action = (cell.strip() for cell in line.strip("|").split("|"))
            entry = frozenset(levels.split(", ")), frozenset(one.strip("`") for one in loggers.split(", "))
            found.append((event.strip("`"), entry, meaning, action))
    return found


@cache
def logged_events() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for path in SOURCE.rglob("*.py"):
        for event, level, logger in calls(ast.parse(path.read_text(encoding="utf-8"))):
            levels, loggers = found.get(event, (frozenset(), frozenset()))
            found[event] = levels | {level}, loggers | {logger}
    return found


def calls(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """The event, level and logger of each call of a logger's method, and of each call that gets such a method and the event."""
    loggers = {
        target.id: logger
        for node in tree.body
        if isinstance(node, ast.Assign) and (logger := logger_name(node.value, {}))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for method, event in zip([node.func, *node.args], node.args, strict=False):
                if (
                    isinstance(method, ast.Attribute)
                    and method.attr in LEVELS
                    and (logger := logger_name(method.value, loggers))
                ):
                    literal = isinstance(event, ast.Constant) and isinstance(event.value, str)
                    yield ast.literal_eval(event) if literal else f"<{ast.unparse(event)}>", method.attr, logger


def logger_name(node: ast.expr, loggers: dict[str, str]) -> str | None:
    match node:
        case ast.Name(id):
            return loggers.get(id)
        case ast.Call(ast.Name("get_logger"), [ast.Constant(str(name))]):
            return name
    return None
