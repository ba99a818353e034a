"""A misspelled option is refused with the nearest one, and an error of the first hour names its remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from holdfast import ConfigurationError, Context, Holdfast, UnsupportedConnection, WorkerOptions, WrongDatabase
from holdfast.idempotency.key import IdempotencyKey, SyncIdempotencyKey
from holdfast.runtime.store_factory import open_store
from holdfast.stores.connections.connection import adapt_connection
from tests.support.worker import drain


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")


MISSPELLED: list[tuple[str, Callable[[Any], object]]] = [
    (r"Holdfast.publish\(\) has no option kee=; did you mean key=\?", lambda hf: hf.publish("a", conn=None, kee="k")),
    (r"Holdfast.publish_many\(\) has no option retries=; did you mean retry=", lambda hf: hf.publish_many([], conn=None, retries=5)),
    (r"SyncHoldfast.publish\(\) has no option kee=; did you mean key=\?", lambda hf: hf.sync.publish("a", conn=None, kee="k")),
    (r"Holdfast.publish\(\) has no option delay=: an event cannot be delayed, only a job; .*job.using\(delay=",
     lambda hf: hf.publish("a", conn=None, delay="5s")),
    (r"SyncHoldfast.publish\(\) has no option run_at=: an event cannot be", lambda hf: hf.sync.publish("a", conn=None, run_at=1)),
    (r"Holdfast.run\(\) has no option until_idel=; did you mean until_idle=\?", lambda hf: hf.run(until_idel=True)),
    (r"Holdfast.work\(\) has no option stopp=; did you mean stop=\?", lambda hf: hf.work(stopp=None)),
    (r"Holdfast.lifespan\(\) has no option worker=; did you mean workers=\?", lambda hf: hf.lifespan(worker=None)),
    (r"Holdfast.relay\(\) has no option too=; did you mean to=\?", lambda hf: hf.relay("a", too=None)),
    (r"Holdfast.workflow\(\) has no option verison=; did you mean version=\?", lambda hf: hf.workflow("a", verison=2)),
    (r"Schedules.put\(\) has no option evry=; did you mean every=\?", lambda hf: hf.schedules.put("a", job="b", evry="1h")),
    (r"SyncSchedules.put\(\) has no option evry=; did you mean every=\?", lambda hf: hf.schedules.sync.put("a", job="b", evry="1h")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), MISSPELLED)
def test_a_misspelled_option_of_a_call_is_refused_with_the_nearest_one(
    hf: Holdfast, text: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(TypeError, match=text):
        call(hf)


@pytest.mark.parametrize("cls", [IdempotencyKey, SyncIdempotencyKey])
def test_a_misspelled_option_of_an_idempotent_response_is_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match=r"complete\(\) has no option status_code=; did you mean status=\?"):
        cls.complete(object.__new__(cls), {"a": 1}, status_code=201, conn=None)


async def test_another_type_error_of_a_call_stays_as_it_is(hf: Holdfast) -> None:
    unchecked: Any = hf
    with pytest.raises(TypeError, match="positional"):
        await unchecked.publish(conn=None)
    with pytest.raises(TypeError, match=r"an event loop is running here; use `await hf\.work"):
        hf.run(options=WorkerOptions())


def test_a_misspelled_option_of_a_decorator_gets_one_suggestion_instead_of_all_options(hf: Holdfast) -> None:
    unchecked: Any = hf
    with pytest.raises(ConfigurationError) as refused:
        unchecked.job(timout="5s")
    assert str(refused.value) == "@hf.job has no option 'timout'; did you mean timeout=?"


async def test_a_completion_with_none_says_whose_connection_it_needs(hf: Holdfast) -> None:
    errors = []

    @hf.job()
    async def charge(ctx: Context) -> None:
        for complete in (ctx.complete, ctx.sync.complete):
            with pytest.raises(UnsupportedConnection) as refused:
                await complete(conn=None)  # type: ignore[misc]
            errors.append(str(refused.value))

    await charge.enqueue()
    await drain(hf)
    await hf.close()
    assert len(errors) == 2
    for error in errors:
        assert "pass the open connection or session with which the handler writes its effect" in error
        assert "conn=None" not in error


def test_an_object_that_opens_connections_is_refused_with_how_to_open_one(tmp_path: Path) -> None:
    engine, async_engine = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    cases = {
        "use `with engine.begin() as conn:`": engine,
        "use `async with engine.begin() as conn:`": async_engine,
        "use `with Session.begin() as session:`": sessionmaker(engine),
        "use `async with Session.begin() as session:`": async_sessionmaker(async_engine),
    }
    for text, given in cases.items():
        with pytest.raises(UnsupportedConnection, match=re.escape(text)):
            adapt_connection(given)


def test_an_empty_dsn_is_called_empty() -> None:
    for dsn in ("", "  "):
        with pytest.raises(ConfigurationError, match="the DSN is empty; give"):
            open_store(dsn)


def test_a_missing_store_names_the_option_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    with pytest.raises(ConfigurationError, match="commands of holdfast also take --dsn"):
        _ = Holdfast().dsn


def test_a_schedule_of_a_plain_function_names_the_decorator(hf: Holdfast) -> None:
    def report() -> None: ...

    unchecked: Any = hf.schedules.sync
    with pytest.raises(ConfigurationError, match=r"job= is report, which is not a job; decorate it with @hf.job\(\)"):
        unchecked.put("daily", job=report, every="1d")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("every day", r"has 2 fields; give minute, hour, .*every='30s'"),
        ("@daily", r"has 1 field; give minute"),
        ("", r"has 0 fields"),
        ("61 7 * * *", r"minute is '61'; give minute"),
        ("0 7 * 13 *", r"month is '13'; give minute"),
    ],
)
def test_a_cron_expression_that_cannot_be_read_names_the_wrong_field(hf: Holdfast, expression: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        hf.cron(expression)


def test_the_database_of_a_connection_is_called_a_database_once() -> None:
    error = WrongDatabase("'postgres' of this server", "postgresql://127.0.0.1/shop")
    assert str(error).startswith("the connection uses database 'postgres' of this server, but the store is")
