"""The environment of a run: clocks, random sources, threads and log lines of this interpreter are replaced.

Holdfast reads `time.monotonic()`, `random.random()` and `secrets.randbits()` through their modules, so a run replaces the
functions of those modules and restores them afterwards.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from holdfast._log import Background, Logger
from holdfast.engine.execution.threads import ThreadResult, Threads
from holdfast.engine.maintenance.quarantine import QuarantineRunner
from holdfast.engine.worker import session
from holdfast.engine.worker.lease import Lease
from simulation.loop import VirtualLoop, sleep

if TYPE_CHECKING:
    from simulation.world import World


@contextlib.contextmanager
def simulated(world: "World") -> Iterator[None]:
    """Inside, the code of Holdfast runs in the world's time, with the world's randomness."""
    state, source = random.getstate(), random.Random(f"{world.seed}/ids")
    random.seed(f"{world.seed}/engine")
    with contextlib.ExitStack() as stack:
        for target, name, replacement in _replacements(world, source):
            stack.enter_context(patch.object(target, name, replacement))
        try:
            yield
        finally:
            random.setstate(state)


def _replacements(world: "World", source: random.Random) -> list[tuple[Any, str, Any]]:
    def log(logger: Logger, level: str, event: str, fields: dict[str, Any]) -> None:
        if level != "debug":
            world.record(_process_name(), event, fields)

    return [
        (asyncio, "sleep", sleep),
        (time, "monotonic", world.clock.monotonic),
        (time, "time", world.clock.time),
        (time, "time_ns", world.clock.time_ns),
        (secrets, "token_hex", lambda size=32: source.randbytes(size).hex()),
        (secrets, "randbits", source.getrandbits),
        (random, "SystemRandom", lambda: source),
        (session, "instance_id", lambda: f"{_process_name()}/{source.randbytes(3).hex()}"),
        (Threads, "start", _start_inline),
        (Lease, "start", _start_renewal),
        (Lease, "join", lambda lease, timeout=None: None),
        (QuarantineRunner, "perform", _no_child),
        (Background, "running", lambda background: contextlib.nullcontext()),
        (Logger, "_log", log),
    ]


async def _no_child(quarantine: QuarantineRunner, worker: str) -> None:
    """The world starts the child process for suspects."""


def _process_name() -> str:
    loop = asyncio.events._get_running_loop()
    return loop.process.name if isinstance(loop, VirtualLoop) else "world"


def _start_inline(threads: Threads, function: Callable[[], object]) -> "asyncio.Future[ThreadResult]":
    """Runs the function of a thread in the next turn of the loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ThreadResult] = loop.create_future()

    def call() -> None:
        try:
            result = ThreadResult(function(), None)
        except Exception as error:  # noqa: BLE001
            result = ThreadResult(None, error)
        if not future.done():
            future.set_result(result)

    loop.call_soon(call)
    return future


def _start_renewal(lease: Lease) -> None:
    """Runs the renewals of a lease in the second loop of its process."""
    process = cast("VirtualLoop", asyncio.get_running_loop()).process
    process.lease.create_task(_renew(lease))


async def _renew(lease: Lease) -> None:
    pause: float | None = lease._seconds / 4
    while pause is not None:
        until = time.monotonic() + pause
        # `stop` sets an event of threads; a real thread wakes at once.
        while time.monotonic() < until and not lease._stopping.is_set():  # noqa: ASYNC110
            await asyncio.sleep(min(0.25, max(until - time.monotonic(), 0.001)))
        if lease._stopping.is_set():
            return
        pause = lease.renew()
