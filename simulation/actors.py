"""The programs of the simulated processes: workers, publishers, and an operator."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from holdfast import Filter, Job, StoreUnavailable, WorkerOptions
from holdfast.core.errors import ConfigurationError, HoldfastError
from simulation.application import TICK_SECONDS, SimulatedApp, chance, declarations
from simulation.features import KINDS, PARTS, application, declare, delay, features
from simulation.history import Action, Publication
from simulation.process import Process
from simulation.world import World

_OWN = ("order", "call", "remind")
"""What is published in a transaction with rows of the application, for half of the publications."""
_PAUSABLE = ("book", "pay", "call", "ledger")


async def worker(world: World, process: Process) -> None:
    """A worker that is stopped by a deploy from time to time."""
    hf, stop = application(world, process), asyncio.Event()
    if not world.quiet and chance(world, "deploys") < 0.6:
        asyncio.get_running_loop().call_later(world.random.uniform(2, 3 * world.settings.seconds), stop.set)
    await hf.work(_options(world), stop=stop)


async def suspect_worker(world: World, process: Process) -> None:
    """The child process that runs suspect deliveries one at a time; it ends when there are none."""
    hf = application(world, process)
    await hf.work(_options(world, suspects=True))


def _options(world: World, *, suspects: bool = False) -> WorkerOptions:
    settings = world.settings
    return WorkerOptions(
        concurrency=1 if suspects else 6,
        lease=timedelta(seconds=settings.lease),
        poll=timedelta(seconds=settings.poll),
        grace=timedelta(seconds=2),
        suspects=suspects,
    )


class Publisher:
    """Publishes its messages one after another. A new life of the process continues after the last one."""

    def __init__(self, number: int) -> None:
        self._number, self._next = number, 0

    def is_done(self, world: World) -> bool:
        return self._next >= world.settings.messages

    async def run(self, world: World, process: Process) -> None:
        hf, has_delays = application(world, process), "later" in features(world)
        # With a factor of three, about a third is published when no worker is restarted any more.
        longest = (3 if has_delays else 1.6) * world.settings.seconds / world.settings.messages
        kinds = ["order", "entry", "pay", "call", "entry", "order", "trip"]
        for name in sorted(features(world) & set(KINDS)):
            kinds += KINDS[name]
        async with asyncio.TaskGroup() as transactions:
            while not self.is_done(world):
                n = self._number * 1000 + self._next
                self._next += 1
                await asyncio.sleep(world.random.uniform(0, longest))
                kind = kinds[int(chance(world, "kind", n) * len(kinds))]
                if kind in _OWN and chance(world, "own", n) < (0.7 if has_delays else 0.5):
                    # What is published next may commit first.
                    transactions.create_task(self._publish(hf, kind, n, own=True))
                else:
                    await self._publish(hf, kind, n, own=False)

    async def _publish(self, hf: SimulatedApp, kind: str, n: int, *, own: bool) -> None:
        world, process = hf.world, hf.process
        history, place = world.history.publications, len(world.history.publications)
        history.append(Publication(n, kind, "unknown", None))
        process.record("publish", kind=kind, n=n)
        try:
            if own:
                outcome, message = await self._in_transaction(hf, kind, n)
            else:
                outcome, message = "accepted", await self._commit(hf, kind, n)
        except ConfigurationError:
            raise
        except HoldfastError as error:
            process.record("publish failed", n=n, error=type(error).__name__)
            return
        history[place] = Publication(n, kind, outcome, message)
        process.record("published", n=n, outcome=outcome)

    async def _commit(self, hf: SimulatedApp, kind: str, n: int) -> str:
        """Publishes in a separate transaction. With a key it repeats until it succeeds; without, the first error is final."""
        key = f"{kind}-{n}" if chance(hf.world, "keyed", n) < 0.6 else None
        while True:
            try:
                return await self._send(hf, kind, n, key)
            except StoreUnavailable as error:
                if key is None:
                    raise
                hf.process.record("publish repeated", n=n, error=str(error))
                await asyncio.sleep(0.2)

    async def _send(self, hf: SimulatedApp, kind: str, n: int, key: str | None) -> str:
        match kind:
            case "order":
                return str((await hf.publish("order.placed", {"n": n}, conn=None, key=key)).id)
            case "entry":
                entry = {"n": n, "account": f"a{self._number}"}
                return str((await hf.publish("entry.added", entry, conn=None, key=key)).id)
            case "trip":
                flow = declarations().declared_workflows["trip"]
                return str((await flow.using(key=key).start(n=n)).id)
            case "index":
                job = declare("debounce").declared_jobs[kind]
                return str((await job.using(key=key).enqueue(f"a{self._number}", n)).id)
            case "album":
                jobs = declare("group").declared_jobs
                parts = hf.group([jobs["part"].call(n, number) for number in range(PARTS)], on_failure="run")
                return str((await parts.then(jobs["album"], n=n).using(key=key, conn=None).enqueue()).id)
            case _:
                return str((await _job(hf.world, kind, n).using(key=key).enqueue(n)).id)

    async def _in_transaction(self, hf: SimulatedApp, kind: str, n: int) -> tuple[str, str | None]:
        """Publishes with a row of the business, and commits or rolls back both."""
        world, message = hf.world, None
        await hf._runtime.registration.prepare()
        try:
            async with world.database.transaction(hf.process) as conn:
                await world.database.insert(conn, "business", n)
                if kind == "order":
                    message = str((await world.database.publish(hf, conn, "order.placed", {"n": n})).id)
                else:
                    message = str((await world.database.enqueue(hf, _job(world, kind, n).using(conn=conn), n)).id)
                await asyncio.sleep(world.latency())
                if "later" in features(world):
                    await asyncio.sleep(chance(world, "open", n) * world.database.longest_transaction)
                if chance(world, "rolls back", n) < 0.3:
                    raise _RolledBack
        except _RolledBack:
            return "rolled back", message
        return "accepted", message


def _job(world: World, kind: str, n: int) -> Job[..., Any]:
    match kind:
        case "remind":
            return declare("later").declared_jobs[kind].using(delay=delay(world, n))
        case "mail":
            return declare("rate").declared_jobs[kind]
        case _:
            return declarations().declared_jobs[kind]


class _RolledBack(Exception):
    """The application changed its mind."""


async def operator(world: World, process: Process) -> None:
    """Acts on random deliveries, and on consumers, until the time of faults is over; then undoes its pauses."""
    hf = application(world, process)
    await _until_done(partial(hf.schedules.put, "tick", every=f"{TICK_SECONDS}s", job="tick", missed="all"))
    while not world.quiet:
        await asyncio.sleep(world.random.uniform(0.3, 2.5))
        try:
            await _act(hf)
        except StoreUnavailable as error:
            process.record("action failed", error=type(error).__name__)
    if world.rebuilds:
        await _until_done(partial(_rebuild, hf))
    for name in _PAUSABLE:
        await _until_done(partial(hf.ops.resume_consumer, name, actor="op"))
    await _until_done(partial(hf.ops.pause_schedule, "tick", actor="op"))
    world.operator_done = True


async def _act(hf: SimulatedApp) -> None:
    world, used = hf.world, features(hf.world)
    if "plan" in used and world.random.random() < 0.5:
        await _act_by_plan(hf)
        return
    if "projector" in used and world.random.random() < 0.3:
        await _rebuild(hf)
        return
    choice = world.random.random()
    if choice < 0.25:
        name = world.random.choice(_PAUSABLE)
        paused = world.random.random() < 0.4
        await (hf.ops.pause_consumer if paused else hf.ops.resume_consumer)(name, actor="op")
        return
    if choice < 0.33:
        await hf.ops.prune(timedelta(seconds=world.settings.seconds / 4), actor="op")
        return
    wanted = _deliveries(world, dead=choice < 0.75)
    if not wanted:
        return
    chosen = world.random.choice(wanted)
    kind = "replay" if choice < 0.65 else "discard" if choice < 0.75 else "cancel"
    world.history.touched.add(chosen)
    report = await getattr(hf.ops, kind)([UUID(chosen)], actor="op")
    hf.process.record(kind, delivery=chosen, done=report.done)
    if report.done:
        world.history.actions.append(Action(world.database.number(), kind, chosen))


async def _act_by_plan(hf: SimulatedApp) -> None:
    """Saves a plan for up to three deliveries and executes it later, when they may have ended or run again."""
    world = hf.world
    kind = world.random.choice(("cancel", "cancel", "replay", "discard"))
    wanted = _deliveries(world, dead=kind != "cancel")
    if not wanted:
        return
    chosen = world.random.sample(wanted, min(3, len(wanted)))
    world.history.touched.update(chosen)
    plan = await getattr(hf.ops, f"plan_{kind}")(Filter(ids=tuple(map(UUID, chosen))), actor="op")
    await asyncio.sleep(world.random.uniform(0.2, 1.5))
    report = await plan.execute(actor="op")
    hf.process.record(f"plan {kind}", deliveries=sorted(chosen), done=sorted(map(str, report.done)))
    world.history.actions += [Action(world.database.number(), kind, str(id)) for id in report.done]


def _deliveries(world: World, *, dead: bool) -> list[str]:
    """The deliveries on which an operator may act: the dead letters, or the others."""
    rows = world.database.read(
        f"select id, status from {world.database.delivery} "
        "where consumer not like 'trip%' and consumer <> 'tick' order by id"
    )
    return [str(id) for id, status in rows if (status == "failed") == dead]


async def _rebuild(hf: SimulatedApp) -> None:
    """Rebuilds the projection. One that was interrupted is started again before the run ends."""
    hf.world.rebuilds = True
    try:
        await hf.projectors.rebuild("view", actor="op", lease=timedelta(seconds=2 * hf.world.settings.lease))
    except StoreUnavailable:
        raise
    except HoldfastError as error:
        hf.process.record("rebuild failed", error=repr(error))
        raise StoreUnavailable("simulated", "the rebuild is repeated") from error
    hf.world.rebuilds = False
    hf.process.record("rebuilt")


async def _until_done(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
            return
        except StoreUnavailable:
            await asyncio.sleep(0.3)
