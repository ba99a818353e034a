"""Typical mistakes of the first hour, and the remedy that the error names."""

import asyncio
import copy
import os
import pwd
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigurationError,
    Context,
    Holdfast,
    IdempotencyMiddleware,
    InvalidPayload,
    Limit,
    RetryPolicy,
    Step,
    StoreLocked,
    StoreUnavailable,
    WorkerOptions,
    event,
)
from holdfast.app.worker.app_loader import AppNotFound, load_app
from holdfast.console import console
from holdfast.idempotency.django import idempotent as django_idempotent
from holdfast.idempotency.flask import idempotent as flask_idempotent
from holdfast.idempotency.wsgi import WsgiIdempotencyMiddleware


class Basket:
    """Neither JSON nor a dataclass."""


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")


async def test_a_publish_without_a_connection_names_both_choices(hf: Holdfast) -> None:
    remedy = "needs conn=: pass the open connection or session of your transaction, or conn=None"
    with pytest.raises(TypeError, match=remedy):
        await hf.publish("order.placed", {"id": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        await hf.publish_many([("order.placed", {"id": 1})])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        hf.sync.publish("order.placed", {"id": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        hf.sync.publish_many([("order.placed", {"id": 1})])  # type: ignore[call-arg]


async def test_an_object_that_is_not_json_is_refused_with_what_to_pass_instead(hf: Holdfast) -> None:
    with pytest.raises(InvalidPayload, match=r"\$\.basket: .*Basket is not supported; pass its id or its fields"):
        await hf.publish("order.placed", {"basket": Basket()}, conn=None)


def test_the_handle_of_a_job_is_made_from_the_text_of_its_id(hf: Holdfast) -> None:
    @hf.job(result="1h")
    def total(order: int) -> int:
        return order

    id = uuid.uuid4()
    assert total.handle(str(id)).id == total.handle(id).id == id
    for wrong in ("7", 7, None):
        with pytest.raises(ConfigurationError, match="pass the id of the handle that enqueue returned"):
            total.handle(wrong)  # type: ignore[arg-type]


async def test_a_completion_without_a_connection_says_whose_connection_it_needs(hf: Holdfast) -> None:
    errors = []

    def complete(ctx: Context) -> None:
        calls: list[Any] = [ctx.complete, ctx.sync.complete]
        for call in calls:
            with pytest.raises(TypeError) as wrong:
                call()
            errors.append(str(wrong.value))

    @hf.job()
    async def charge(ctx: Context) -> None:
        complete(ctx)

    order = hf.workflow("order")

    @order.step
    async def pay(ctx: Step, number: int) -> None:
        complete(ctx)

    await charge.enqueue()
    await order.start(1)
    await hf.work(WorkerOptions(until_idle=True))
    await hf.close()
    assert sorted(error.partition(":")[0] for error in errors) == [
        "Context.complete() needs conn=",
        "StepContext.complete() needs conn=",
        "SyncContext.complete() needs conn=",
        "SyncStepContext.complete() needs conn=",
    ]
    assert "the open connection or session with which the handler writes its effect" in errors[0]


def test_an_unknown_option_is_refused_with_the_nearest_one(hf: Holdfast) -> None:
    unchecked: Any = Holdfast
    with pytest.raises(TypeError, match=r"Holdfast\(\) has no option sourse=; did you mean source=\?"):
        unchecked("sqlite:///shop.db", sourse="shop")
    options: Any = WorkerOptions
    with pytest.raises(TypeError, match=r"WorkerOptions\(\) has no option concurency=; did you mean concurrency=\?"):
        options(concurency=5)

    @hf.job()
    def send(to: str) -> None: ...

    job: Any = send
    with pytest.raises(TypeError, match=r"Job.using\(\) has no option dely=; did you mean delay=\?"):
        job.using(dely="5m")


def test_the_methods_of_other_libraries_are_refused_with_the_one_to_use(hf: Holdfast) -> None:
    @hf.job()
    def send(to: str) -> None: ...

    job: Any = send
    with pytest.raises(AttributeError, match=r"a job has no attribute 'delay'; write job.enqueue\(...\)"):
        job.delay("ada")
    with pytest.raises(AttributeError, match=r"'apply_async'; give options before the arguments"):
        job.apply_async(("ada",), countdown=5)
    assert not hasattr(job, "anything")
    assert copy.copy(job).name == "send"


@pytest.mark.parametrize("by", ["headers:tenant", "Header:tenant", "heder:tenant"])
def test_a_misspelled_header_prefix_is_refused(hf: Holdfast, by: str) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'header:tenant'"):
        Limit(1, by=by)
    with pytest.raises(ConfigurationError, match="did you mean 'header:tenant'"):

        @hf.consumer("order.placed", order_by=by)
        def ship(order: dict[str, Any]) -> None: ...


def test_a_header_without_a_value_is_left_out(hf: Holdfast) -> None:
    with pytest.raises(InvalidPayload, match=r"headers\.tenant: is of type NoneType; leave the header out"):
        hf.sync.publish("order.placed", {"id": 1}, headers={"tenant": None}, conn=None)


def test_parameters_in_the_wrong_order_are_shown_as_they_were_written(hf: Holdfast) -> None:
    def ship(order: int, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match=r"ship\(order: int, ctx: Context\) -> None must take"):
        hf.consumer("order.placed")(ship)


def test_a_queue_that_is_only_a_name_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigurationError, match=r"queues has the item 'mail'; give Queue\('mail', ...\)"):
        Holdfast("sqlite:///shop.db", queues=["mail"])  # type: ignore[list-item]


def test_an_error_while_an_app_is_imported_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken_shop.py").write_text("import holdfast\nhf = holdfast.Holdfast(sourse='shop')\n")
    with pytest.raises(AppNotFound, match=r"broken_shop.py:2; correct it, then run the command again"):
        load_app(f"{tmp_path / 'broken_shop.py'}:hf")
    with pytest.raises(AppNotFound, match="run the command in the folder of the module"):
        load_app("absent_shop:hf")


def test_every_public_name_can_be_imported_without_fastapi() -> None:
    program = "import sys; sys.modules['fastapi'] = None\nfrom holdfast import *\nassert IdempotencyKey"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("expression", ["0 0 7 * * *", "0 7 * * * 0"])
def test_a_cron_expression_with_seconds_is_refused(hf: Holdfast, expression: str) -> None:
    with pytest.raises(ConfigurationError, match=r"has 6 fields; give minute, hour, .*every='30s'"):
        hf.cron(expression)


def test_a_sqlite_path_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database" * 100)
    cases = {
        "data/shop.db": f"the folder {tmp_path / 'data'} does not exist",
        "": f"{tmp_path} is a folder",
        "notes.txt": f"{tmp_path / 'notes.txt'}: file is not a database",
    }
    for name, cause in cases.items():
        with pytest.raises(StoreUnavailable) as refused:
            Holdfast(f"sqlite:///{tmp_path / name}").sync.publish("order.placed", {}, conn=None)
        assert f"is unavailable ({cause}); check the path in the DSN and the permissions" in str(refused.value)


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from holdfast import Holdfast, StoreUnavailable

def work(run):
    hf = Holdfast(f"sqlite:///{folder}/shop.db")
    hf.run(until_idle=True) if run else hf.sync.publish("order.placed", {}, conn=None)

folder = Path(sys.argv[1])
work(run=False)
work(run=True)  # every module is imported before the user changes
for file in folder.iterdir():
    file.chmod(0o444)
folder.chmod(0o555)
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
for run in (False, True):
    try:
        work(run)
    except StoreUnavailable as error:
        print(error)
"""


def test_a_user_who_cannot_write_is_named() -> None:
    # Not in pytest's folder, which another user cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-c", UNPRIVILEGED, folder]
        ran = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
        Path(folder).chmod(0o755)
    publish, run = ran.stdout.splitlines()
    user = pwd.getpwuid(os.getuid() or 65534).pw_name
    assert f"is unavailable (user {user} cannot write {folder}/shop.db); check the path" in publish
    assert f"cannot write {folder}/shop.db" in run


async def test_a_transaction_that_was_never_committed_is_reported_as_the_holder_of_the_lock(hf: Holdfast) -> None:
    @hf.job()
    def send(to: str) -> None: ...

    await send.enqueue("ada")
    later = Holdfast(hf.dsn)  # a second start: the tables are there
    with closing(sqlite3.connect(hf.dsn.removeprefix("sqlite:///"))) as forgotten:
        forgotten.execute("create table orders (id integer)")
        forgotten.execute("insert into orders values (1)")
        later.job(name="other")(lambda: None)
        with pytest.raises(StoreLocked, match="another connection of this process has held the write lock since"):
            await later.publish("order.placed", {}, conn=None)
    await hf.close()
    await later.close()


async def test_a_blocking_wait_in_an_event_loop_is_refused_before_it_stops_the_worker(hf: Holdfast) -> None:
    @hf.job(result="1h")
    async def total() -> int:
        return 1

    async with hf.lifespan(workers=WorkerOptions()):
        handle = await total.enqueue()
        with pytest.raises(TypeError, match=r"sync.result\(\) blocks and an event loop is running here; use `await"):
            handle.sync.result()
        assert await handle.result(timeout="10s") == 1


@event("payment.settled")
@dataclass
class Settled:
    amount: int


async def test_the_trace_of_a_refused_payload_or_result_is_its_message(hf: Holdfast) -> None:
    """Frames of Holdfast and of pydantic say nothing about the application, and hide the remedy."""

    @hf.consumer(Settled, name="settle")
    def settle(payment: Settled) -> None: ...

    @hf.job(result="1h")
    def odd() -> Any:
        return Basket()

    @hf.job()
    def fails() -> None:
        raise ConfigurationError("raised by the application")

    await hf.publish("payment.settled", {"amount": "many"}, conn=None, validate=False)
    await odd.enqueue()
    await fails.enqueue()
    await hf.work(WorkerOptions(until_idle=True))
    traces = {}
    for one in await hf.ops.deliveries():
        detail = await hf.ops.delivery(one.delivery.id)
        traces[one.delivery.consumer] = (detail.runs[-1].trace or "", detail.frame)
    await hf.close()
    assert traces["settle"][0].startswith("holdfast.InvalidPayload: payload is invalid at $.amount: ")
    assert traces["odd"][0].startswith("holdfast.ConfigurationError: the result of odd cannot be stored")
    assert (traces["settle"][1], traces["odd"][1]) == (None, None)
    assert traces["fails"][0].startswith("Traceback (most recent call last):")
    assert "test_mistakes.py" in str(traces["fails"][1])


def test_an_app_is_not_a_context_manager_and_names_what_to_use(hf: Holdfast) -> None:
    unchecked: Any = hf
    remedy = (
        r"leave `{}` out: connections open at their first use.*`async with hf.lifespan\(\):` or `await hf.close\(\)`"
    )

    async def enter() -> None:
        async with unchecked:
            pass

    for one in (unchecked, unchecked.sync):
        with pytest.raises(TypeError, match=remedy.format("with")), one:
            pass
    with pytest.raises(TypeError, match=remedy.format("async with")):
        asyncio.run(enter())


def test_a_missing_user_function_is_named_with_an_example(hf: Holdfast) -> None:
    unchecked: Any = console
    with pytest.raises(TypeError, match=r"console\(\) needs actor=: pass a function .* such as \('ada', 'operator'\)"):
        unchecked(hf)
    remedy = r"\(\) needs scope=: pass a function of the request that returns the verified user or tenant"
    for guard in (IdempotencyMiddleware, WsgiIdempotencyMiddleware):
        make: Any = guard
        with pytest.raises(TypeError, match=guard.__name__ + remedy):
            make(Basket, hf)
        with pytest.raises(TypeError, match=r"HTTP idempotency has no option retension=; did you mean retention=\?"):
            make(Basket, hf, scope=str, retension="1d")
    decorators: list[Any] = [flask_idempotent, django_idempotent]
    for decorator in decorators:
        with pytest.raises(TypeError, match="idempotent" + remedy):
            decorator(hf)
        with pytest.raises(TypeError, match=r"has no option requird=; did you mean required=\?"):
            decorator(hf, scope=str, requird=False)


@pytest.mark.parametrize("dsn", ["sqlite:/shop.db", "sqlite:shop.db", "sqlite://shop.db"])
def test_a_sqlite_dsn_with_too_few_slashes_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use sqlite:///relative.db, or sqlite:////absolute/path.db"):
        Holdfast(dsn)


def test_an_unknown_option_of_a_retry_policy_is_refused_with_the_nearest_one() -> None:
    policy: Any = RetryPolicy
    with pytest.raises(TypeError, match=r"RetryPolicy.exponential\(\) has no option max_attempts=; did you mean att"):
        policy.exponential(max_attempts=3)
    with pytest.raises(TypeError, match=r"RetryPolicy.fixed\(\) has no option"):
        policy.fixed("5s", jiter="none")
    with pytest.raises(TypeError, match=r"RetryPolicy\(\) needs kind=: build the policy with RetryPolicy.exponential"):
        policy(max_attempts=3)


def test_an_option_of_the_worker_is_refused_with_where_to_give_it(hf: Holdfast) -> None:
    unchecked: Any = hf
    with pytest.raises(
        TypeError, match=r"Holdfast.work\(\) has no option until_idle=; give options=WorkerOptions\(until"
    ):
        unchecked.work(until_idle=True)
    with pytest.raises(TypeError, match=r"Holdfast.run\(\) has no option concurrency=; give options=WorkerOptions"):
        unchecked.run(concurrency=5)
    hf.run(until_idle=True)


def test_a_lambda_without_a_name_is_refused(hf: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="a lambda has no name to store; use a function, or pass name="):
        hf.job()(lambda: None)
    assert hf.job(name="send_mail")(lambda: None).name == "send_mail"
