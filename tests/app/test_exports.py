"""What `holdfast` exports: the list is changed on purpose, everything in it is explained, and importing it is light."""

import ast
import doctest
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
import holdfast.core.errors

SOURCE = Path(inspect.getfile(holdfast))

# Adding a name is a promise, removing one breaks users: both go through the changelog.
PUBLIC: list[str] = """
    AddressRefused AlreadyCompleted AlreadyHandled Attempt BatchContext BatchError BatchItem BrokerUnavailable Cancel CircuitBreaker CircuitOpen ConfigurationError Context DecryptionFailed
    DurabilityWarning EncryptionKeyMissing EngineRunning EngineStopping Filter Group GroupHandle GroupSummary Holdfast HoldfastError IdempotencyKey IdempotencyMiddleware InvalidDuration InvalidKey
    InvalidName InvalidPayload InvalidSignature Job JobCall JobFailed JobHandle KeyConflict KeyRequired LeaseLost Limit LockTimeout LogRewound MappedStep MemoryCircuits Message NoTransaction
    NotFound Outage PayloadTooLarge PermissionDenied Published Queue RaisesEvents Rate RebuildLost RebuildStopped RedisCircuits Refused RequestIdMiddleware ReservationLost RetryAfter
    RetryBudget RetryPolicy Router Rules SchemaMismatch ServiceClient ServiceRefused Signal Snooze Step StoreBusy
    StoreCircuits StoreError StoreLocked StoreReplaced StoreTimeout StoreUnavailable SyncServiceClient TerminalError Tracing TransactionConflict UnreadableRecord UnsupportedConnection
    Verdict
    WebhookOptions WebhookRefused WorkerOptions Workflow WorkflowFailed WorkflowRun WrongDatabase __version__ begin_immediate collect_events correlate event immediate job_key key redact_logs upcast with_retry
""".split()  # noqa: SIM905

# Drivers, frameworks and tools: none of them is needed to say what an event is.
HEAVY = [
    *("aiosqlite", "asyncio", "asyncpg", "click", "django", "greenlet", "httpx2", "jinja2", "orjson", "psycopg"),
    *("psycopg2", "psycopg_pool", "pydantic", "redis", "rich", "sentry_sdk", "sqlalchemy", "sqlite3", "starlette"),
    *("structlog", "uvicorn", "uvloop"),
]

HOMES = {name: holdfast._HOMES.get(name, "core.errors") for name in PUBLIC if name != "__version__"}


def test_the_exported_names_are_the_ones_that_were_agreed_on() -> None:
    assert sorted(holdfast.__all__) == PUBLIC


def test_type_checkers_see_the_names_that_are_loaded_on_use() -> None:
    tree = ast.parse(SOURCE.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        assert statement.module is not None
        for alias in statement.names:
            assert alias.asname is None
            seen[alias.name] = statement.module.removeprefix("holdfast.")
    assert seen == HOMES
    assert {*seen, "__version__"} == set(holdfast.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_exported_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(holdfast, name)
    assert name in dir(holdfast)
    if name != "__version__":
        # An alias carries the name of what it stands for.
        assert getattr(thing, "__origin__", thing).__name__ == name
        assert inspect.getdoc(thing), f"{name} has no docstring"
        home = importlib.import_module(f"holdfast.{HOMES[name]}")
        assert getattr(home, name) is thing


@pytest.mark.parametrize("name", [name for name in PUBLIC if name[0].isupper()])
def test_every_public_method_of_an_exported_class_says_what_it_does(name: str) -> None:
    cls = getattr(holdfast, name)
    for method, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if not method.startswith("_") and inspect.isfunction(function):
            assert inspect.getdoc(getattr(cls, method)), f"{name}.{method}"


def test_everything_that_can_be_caught_can_be_imported() -> None:
    tree = [
        name
        for name, value in vars(holdfast.core.errors).items()
        if inspect.isclass(value) and issubclass(value, holdfast.HoldfastError)
    ]
    assert set(tree) <= set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    name = "Holdfats"
    with pytest.raises(AttributeError, match="has no attribute 'Holdfats'"):
        getattr(holdfast, name)


@pytest.mark.parametrize("home", sorted(set(HOMES.values())))
def test_the_examples_in_the_docstrings_run(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(f"holdfast.{home}")).failed == 0


def modules_after(program: str, tmp_path: Path) -> set[str]:
    """The packages that a fresh interpreter has loaded after a program."""
    program += "\nimport sys, json\nprint(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    # Coverage loads itself at start-up when the environment asks for it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    ).stdout
    return set(json.loads(output.splitlines()[-1]))


def test_importing_holdfast_loads_nothing_heavy(tmp_path: Path) -> None:
    before = modules_after("", tmp_path)
    assert not (modules_after("import holdfast", tmp_path) - before) & set(HEAVY)


def test_declaring_an_event_loads_no_driver_and_no_framework(tmp_path: Path) -> None:
    loaded = modules_after(
        "from dataclasses import dataclass\n"
        "from holdfast import event\n"
        "@event('order.placed')\n"
        "@dataclass\n"
        "class OrderPlaced: order_id: int",
        tmp_path,
    )
    assert not loaded & {*HEAVY} - {"orjson"}


PUBLISHING = """
import sqlite3
from dataclasses import dataclass
from holdfast import Holdfast, event

hf = Holdfast("sqlite:///shop.db", validate=False)

@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int

@hf.consumer(OrderPlaced)
def bill(order: OrderPlaced) -> None: ...

with sqlite3.connect("shop.db") as db:
    hf.sync.publish(OrderPlaced(1), conn=db)
hf.sync.publish(OrderPlaced(2), conn=None)
"""


def test_publishing_a_dataclass_unchecked_on_sqlite_loads_no_driver_no_framework_and_no_pydantic(
    tmp_path: Path,
) -> None:
    loaded = modules_after(PUBLISHING, tmp_path)
    needed = {"asyncio", "greenlet", "orjson", "rich", "sqlite3", "structlog"}
    assert not loaded & {*HEAVY} - needed
