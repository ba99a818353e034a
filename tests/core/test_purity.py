"""The core is pure and its examples run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import holdfast.core

MODULES = sorted(found.name for found in pkgutil.walk_packages(holdfast.core.__path__, "holdfast.core."))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_the_first_one_imported(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True, capture_output=True)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_thing_says_what_it_guarantees(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for thing in public(module):
        assert thing.__doc__, f"{name}.{thing.__name__}"


def public(module: ModuleType) -> list[ModuleType]:
    return [
        value
        for key, value in vars(module).items()
        if not key.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
    ]


def test_the_core_loads_no_driver_no_framework_and_no_event_loop() -> None:
    heavy = ("asyncio", "pydantic", "structlog", "sqlite3", "psycopg", "asyncpg", "sqlalchemy", "socket", "logging")
    script = (
        f"import sys, importlib; [importlib.import_module(n) for n in {MODULES!r}];"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
