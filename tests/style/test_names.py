"""Names of modules and classes: one class name, one meaning; no participles or metaphors as module names."""

import ast
from collections import defaultdict
from pathlib import Path

import holdfast
from holdfast import HoldfastError
from holdfast.core.values.text import type_name
from holdfast.engine.execution.runner import HandlerTimeout, RolledBack
from holdfast.engine.settlement.group_stages import StageFailed
from holdfast.engine.workflows.deadline import StepDeadlinePassed

ROOT = Path(__file__).parents[2] / "src" / "holdfast"

MODULE_NAMES_WITH_A_REASON = {
    "tracing": "the field's word for distributed tracing",
    "testing": "the usual name of a package with test support",
    "scheduling": "the activity is the subject",
    "encoding": "a noun in its own right",
    "formatting": "a noun in its own right",
    "embedded": "an adjective of the field: embedded worker",
}

METAPHORS = {
    "door", "visit", "visitor", "house", "crew", "stage", "world", "life", "family", "surroundings", "strays", "course",
    "pace", "judge", "doubts", "line", "place", "places", "carried", "flaw", "tally", "silence", "lookback", "seen", "travel",
    "trail", "raised", "implicit", "framework", "handshake", "glance", "gate", "words", "story", "choose", "acting", "reading",
    "planning", "faults", "watch", "fleet", "upkeep", "shape", "work", "findings", "trend", "locate", "opening", "working",
    "copies", "direct", "taking", "sending", "planned", "operate", "bounded", "courier", "parcel", "kit", "hint",
}  # fmt: skip


def test_class_names_are_unique_in_the_package() -> None:
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(found)}" for name, found in sorted(twice.items()))


def test_module_names_are_nouns_of_the_field() -> None:
    names = {path.stem: path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.stem != "__init__"}
    names |= {path.parent.name: path.parent.relative_to(ROOT) for path in ROOT.rglob("__init__.py")}
    wrong = [
        str(path)
        for name, path in sorted(names.items())
        if name in METAPHORS or (name.endswith(("ing", "ed")) and name not in MODULE_NAMES_WITH_A_REASON)
    ]
    assert not wrong, f"choose a noun that says what the module contains: {', '.join(wrong)}"


def test_no_module_is_longer_than_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in ROOT.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long, f"split by subject: {long}"


def test_the_stored_names_of_errors_do_not_depend_on_the_module_of_the_class() -> None:
    """Dead letters are grouped and filtered by these names, also those that an earlier release has stored."""
    public = [name for name in holdfast.__all__ if isinstance(getattr(holdfast, name), type)]
    errors = [getattr(holdfast, name) for name in public if issubclass(getattr(holdfast, name), HoldfastError)]
    assert {type_name(error) for error in errors} == {f"holdfast.{error.__name__}" for error in errors}
    assert [type_name(error) for error in (HandlerTimeout, RolledBack, StageFailed, StepDeadlinePassed)] == [
        "holdfast.HandlerTimeout",
        "holdfast.RolledBack",
        "holdfast.StageFailed",
        "holdfast.StepDeadlinePassed",
    ]
