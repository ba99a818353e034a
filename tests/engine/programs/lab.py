"""Handlers that do what the tests of single faults need: wait at a marker, sleep, hold a transaction, kill their process."""

import asyncio
import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, RetryPolicy
from holdfast.stores.postgres.watchdog import ResponseWatchdog
from tests.engine.programs import crash, shop

BUDGET = 4


def build(dsn: str) -> Holdfast:
    """The laboratory on one database."""
    hf = Holdfast(dsn)
    soon = RetryPolicy.fixed(0.05, attempts=20)

    @hf.consumer("nap", retry=soon)
    async def nap(ctx: Context, body: dict[str, Any]) -> None:
        note(f"nap {body['n']} started")
        try:
            await asyncio.sleep(body["seconds"])
        except asyncio.CancelledError:
            note(f"nap {body['n']} cancelled")
            raise
        note(f"nap {body['n']} ended")

    @hf.consumer("hang", retry=soon)
    async def hang(ctx: Context, body: dict[str, Any]) -> None:
        """Blocks the event loop."""
        note(f"hang {body['n']} started")
        time.sleep(body["seconds"])  # noqa: ASYNC251

    @hf.consumer("doze", retry=soon)
    def doze(ctx: Context, body: dict[str, Any]) -> None:
        note(f"doze {body['n']} started")
        time.sleep(body["seconds"])
        note(f"doze {body['n']} ended")

    @hf.consumer("hold", retry=soon)
    def hold(ctx: Context, body: dict[str, Any]) -> None:
        """Waits before its transaction, inside it before `ctx.complete`, or after that, as the test chooses."""
        _wait(body, "outside")
        with shop.transaction(dsn) as db:
            values = (body["n"], str(ctx.message_id), ctx.attempt)
            db.execute(shop.spelled(dsn, "insert into effect (n, message_id, attempt) values (?, ?, ?)"), values)
            _wait(body, "inside")
            ctx.sync.complete(conn=db)
            _wait(body, "completed")
        _wait(body, "committed")

    @hf.consumer("visit", retry=soon)
    def visit(ctx: Context, body: dict[str, Any]) -> None:
        """An effect elsewhere, settled by the engine."""
        note(f"visit {body['n']} {ctx.message_id} by {os.environ.get('HOLDFAST_TEST_NAME', '')}")
        _wait(body, "outside")

    @hf.consumer("weigh", retry=soon)
    async def weigh(ctx: Context, body: dict[str, Any]) -> None:
        """Waits a moment with its payload in memory, as a handler that sends it elsewhere does."""
        await asyncio.sleep(0.05)
        note(f"weigh {body['n']} {len(body['text'])}")

    @hf.consumer("die", retry=RetryPolicy.fixed(0.05, attempts=BUDGET))
    def die(ctx: Context, body: dict[str, Any]) -> None:
        note(f"die {body['n']} attempt {ctx.attempt}")
        _end_process(body["how"])

    @hf.consumer("crowd", retry=RetryPolicy.fixed(0.05, attempts=BUDGET))
    async def crowd(ctx: Context, body: dict[str, Any]) -> None:
        """One of many in a batch; the guilty one among them ends the process while the others are under way."""
        if body.get("how"):
            note(f"guilty attempt {ctx.attempt}")
            _end_process(body["how"])
        await asyncio.sleep(0.005)

    @hf.consumer("twice", retry=soon)
    async def twice(ctx: Context, body: dict[str, Any]) -> None:
        """Fails at its first run."""
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        note(f"twice {body['n']} {ctx.message_id} at {time.time():.0f}")

    @hf.consumer("never", retry=RetryPolicy.none())
    async def never(ctx: Context, body: dict[str, Any]) -> None:
        """Fails until the test allows it to succeed."""
        if not crash.allowed("never"):
            raise ValueError("never")

    if "HOLDFAST_TEST_CRON" in os.environ:

        @hf.cron(os.environ["HOLDFAST_TEST_CRON"], tz="Europe/Berlin", missed="all")
        async def tick(ctx: Context) -> None:
            note(f"tick {ctx.headers['scheduled_for']}")

    if "HOLDFAST_TEST_SCHEDULES" in os.environ:

        @hf.job()
        async def beat(ctx: Context, name: str) -> None:
            note(f"beat {name} {ctx.headers['scheduled_for']}")

    return hf


def note(text: str) -> None:
    """Appends a line to the sink, with this machine's monotonic time first: it is the same for every process."""
    line = f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f} {text}\n".encode()
    target = os.open(crash.directory() / "sink", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(target, line)
    finally:
        os.close(target)


def _wait(body: dict[str, Any], where: str) -> None:
    if body.get("at") == where:
        crash.wait_at(f"{body['n']}.{where}")


def _end_process(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            # A little more than it has; then it ends as the kernel ends a process that takes too much.
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + 2**25, taken + 2**25))
            try:
                bytearray(2**30)
            except MemoryError:
                os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise ValueError(how)


if "HOLDFAST_TEST_PLACE" in os.environ:
    crash.install()
    hf = build(os.environ["HOLDFAST_DSN"])
    if "HOLDFAST_TEST_PATIENCE" in os.environ:
        hf.store._patience = ResponseWatchdog(float(os.environ["HOLDFAST_TEST_PATIENCE"]))  # type: ignore[attr-defined]
