"""The protocol every measured system speaks: a command in JSON on the command line, lines of JSON back.

A peer implements `Peer`; `serve` runs one command of it in a separate process. Only the standard library is used
here, because it runs in the peers' environments. Times are `time.monotonic()`, which all processes of a machine share.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Payload = dict[str, Any]
Handle = Callable[[Payload], None]

_WARM_CALLS = 7
PATIENCE = 30.0
"""Seconds a drain may go without any progress before it is given up."""


def payloads(count: int, size: int = 100, first: int = 0) -> list[Payload]:
    """Payloads of `size` bytes as JSON, each with its own id."""
    empty = len(json.dumps({"id": 0, "pad": ""}))
    return [{"id": id, "pad": "x" * max(0, size - empty + 1 - len(str(id)))} for id in range(first, first + count)]


def batches(rows: list[Payload], size: int) -> list[list[Payload]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


class Unable(Exception):
    """The peer has no way to do what was asked; the text says what is lacking."""


class Peer:
    """One measured system on one store. `settings` are the variant's; an empty dict means its defaults."""

    packages: tuple[str, ...] = ()
    """The distributions whose versions belong to a figure."""

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        self.where, self.settings = where, settings

    async def setup(self) -> None:
        """Makes the tables."""

    async def open(self) -> None:
        """Connects a publisher; not counted."""

    async def close(self) -> None:
        """Ends what `open` began."""

    async def publish(self, rows: list[Payload]) -> None:
        """Makes all of them durable, by the fastest documented way."""
        raise Unable("it has no way to publish many")

    async def publish_batch(self, rows: list[Payload]) -> None:
        """Makes them durable by one call, committed when this returns."""
        await self.publish(rows)

    async def publish_one(self, row: Payload) -> None:
        """Makes one durable, committed when this returns."""
        await self.publish([row])

    async def transact(self, row: Payload) -> None:
        """Publishes one in a transaction of the caller that also writes a row of the caller's own."""
        raise Unable("it cannot publish in a caller's transaction")

    def slow_transactions(self) -> contextlib.AbstractAsyncContextManager[Callable[[Payload, float], Awaitable[None]]]:
        """A separate connection that publishes one message in a transaction and commits it so many seconds later."""
        raise Unable("it cannot publish in a caller's transaction")

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        """Runs a worker that calls `handle(payload)` for each delivery, until `stop` is set."""
        raise Unable("it has no worker")

    async def remaining(self) -> bool:
        """Whether anything is not settled in the store."""
        raise NotImplementedError

    async def settled(self) -> dict[str, int]:
        """What the store itself says: how many are settled, and how many more than once if it can tell."""
        return {}


class Channel:
    """Where a child's answers go. What a library prints ends up on stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def say(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")


class Record:
    """What a no-op handler leaves behind: which ids ran, and when if asked; or a mere count, which takes no memory."""

    def __init__(self, *, timed: bool, keep: bool) -> None:
        self.ids: list[int] = []
        self.times: list[float] = []
        self.count = 0
        self._timed, self._keep = timed, keep

    def handle(self, payload: Payload) -> None:
        self.count += 1
        if self._keep:
            self.ids.append(payload["id"])
        if self._timed or not self.times:
            self.times.append(time.monotonic())


def serve(make: Callable[[str, dict[str, Any]], Peer], loop_factory: Callable[[], Any] | None = None) -> None:
    """Runs the command given on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("arguments", type=json.loads)
    given = parser.parse_args()
    channel = Channel()
    arguments = dict(given.arguments)
    peer = make(arguments.pop("where"), arguments.pop("settings"))
    command = _COMMANDS[given.command](peer, channel, **arguments)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_to_the_end(command, channel))


async def _to_the_end(command: Coroutine[Any, Any, None], channel: Channel) -> None:
    failed = False
    try:
        await command
    except Unable as error:
        channel.say("unable", reason=str(error))
    except BaseException:  # noqa: BLE001
        failed = True
        traceback.print_exc()
    sys.stderr.flush()
    # At once: threads, pools and tasks that a library left running must not keep the process alive.
    os._exit(failed)


async def _about(peer: Peer, channel: Channel) -> None:
    from importlib.metadata import version

    names = {name: version(name) for name in peer.packages}
    channel.say("about", python=".".join(map(str, sys.version_info[:3])), packages=names)


async def _setup(peer: Peer, channel: Channel) -> None:
    await peer.setup()
    channel.say("done")


async def _publish(peer: Peer, channel: Channel, count: int, size: int = 100, first: int = 0) -> None:
    rows = payloads(count, size, first)
    await peer.open()
    started = time.monotonic()
    await peer.publish(rows)
    seconds = time.monotonic() - started
    await peer.close()
    channel.say("done", seconds=seconds)


async def _publish_batches(peer: Peer, channel: Channel, batches: list[int], lasting: float) -> None:
    """Publishes batches of each size, one after the other, for about `lasting` seconds; reports messages per second."""
    await peer.open()
    rates: dict[str, float] = {}
    for batch in batches:
        rows = payloads(batch)
        for _ in range(_WARM_CALLS if batch < 1000 else 1):  # the first ones prepare
            await peer.publish_batch(rows)
        calls, started = 0, time.monotonic()
        while not calls or time.monotonic() - started < lasting:
            await peer.publish_batch(rows)
            calls += 1
        rates[str(batch)] = calls * batch / (time.monotonic() - started)
    await peer.close()
    channel.say("done", rates=rates)


async def _transact(peer: Peer, channel: Channel, count: int, size: int = 100) -> None:
    rows = payloads(count, size)
    await peer.open()
    await peer.transact(payloads(1, size, count)[0])  # the first one prepares and connects
    started = time.monotonic()
    for row in rows:
        await peer.transact(row)
    seconds = time.monotonic() - started
    await peer.close()
    channel.say("done", seconds=seconds)


async def _publish_slowly(peer: Peer, channel: Channel, count: int, gap: float) -> None:
    """Publishes one at a time into an idle store; says when each call began and when it returned."""
    await peer.open()
    began, returned = [], []
    for row in payloads(count):
        await asyncio.sleep(gap)
        began.append(time.monotonic())
        await peer.publish_one(row)
        returned.append(time.monotonic())
    await peer.close()
    channel.say("done", began=began, returned=returned)


async def _publish_steadily(
    peer: Peer, channel: Channel, rate: float, lasting: float, first: int = 0, tick: float = 0.01
) -> None:
    """An open loop: each tick publishes what is due, even if the previous tick was late. Reports when each message was due."""
    rows = payloads(round(rate * lasting), first=first)
    await peer.open()
    channel.say("started")
    due: list[float] = []
    sent, started = 0, time.monotonic()
    while sent < len(rows):
        now = time.monotonic()
        upto = min(len(rows), round((now - started) * rate) + 1)
        if upto > sent:
            await peer.publish(rows[sent:upto])
            due += [started + number / rate for number in range(sent, upto)]
            sent = upto
        await asyncio.sleep(max(0.0, tick - (time.monotonic() - now)))
    ended = time.monotonic()
    await peer.close()
    channel.say("done", due=due, seconds=ended - started)


async def _business(peer: Peer, channel: Channel, count: int, hold: float, connections: int) -> None:
    """Publishes one each in transactions that stay open for `hold` seconds; says when each had committed."""
    await peer.open()
    rows = iter(payloads(count))
    committed: dict[int, float] = {}

    async def clerk() -> None:
        async with peer.slow_transactions() as transact:
            for row in rows:
                await transact(row, hold)
                committed[row["id"]] = time.monotonic()

    await asyncio.gather(*(clerk() for _ in range(connections)))
    await peer.close()
    channel.say("done", committed=[committed[id] for id in range(count)])


async def _work(peer: Peer, channel: Channel, count: int | None = None, timed: bool = False, keep: bool = True) -> None:
    """Works until `count` ran and the store says that all are settled; without a count, until its input closes."""
    record, stop = Record(timed=timed, keep=keep), asyncio.Event()
    working = asyncio.create_task(peer.work(record.handle, stop))
    channel.say("started", pid=os.getpid())
    input_closed = _watch_input()
    try:
        ended = await _until_done(peer, record, count, working, input_closed)
        observed = await peer.settled()
    finally:
        stop.set()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(working, 30)
    first = record.times[0] if record.times else None
    times = record.times if timed else []
    channel.say("done", first=first, ended=ended, ids=record.ids, times=times, settled=observed)


async def _until_done(
    peer: Peer, record: Record, count: int | None, working: "asyncio.Task[None]", input_closed: threading.Event
) -> float:
    seen, progress_at = -1, time.monotonic()
    while not input_closed.is_set():
        if working.done():
            working.result()
            raise RuntimeError("the worker ended early")
        if count is not None and record.count >= count and not await peer.remaining():
            return time.monotonic()
        if record.count != seen:
            seen, progress_at = record.count, time.monotonic()
        elif count is not None and time.monotonic() - progress_at > PATIENCE:
            raise RuntimeError(f"no progress for {PATIENCE:.0f} s at {seen} of {count}")
        await asyncio.sleep(0.005)
    return time.monotonic()


def _watch_input() -> threading.Event:
    """Set when the parent closes our input, or is gone."""
    input_closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        input_closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return input_closed


_COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "about": _about,
    "setup": _setup,
    "publish": _publish,
    "publish-batches": _publish_batches,
    "transact": _transact,
    "publish-slowly": _publish_slowly,
    "publish-steadily": _publish_steadily,
    "business": _business,
    "work": _work,
}
