"""The world of one run: time, processes, the database, and the scheduler that chooses who runs next."""

import asyncio
import hashlib
import random
from asyncio import events
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.clock import Clock
from simulation.database import AnyDatabase
from simulation.faults import OUTAGE_ADDRESS, Fault, FaultPlan, Planned
from simulation.history import History, ProcessFault, Run
from simulation.loop import Agenda
from simulation.process import Process

Program = Callable[["World", Process], Coroutine[Any, Any, None]]

_NOTICED = 0.7
"""The share of commits whose notification arrives."""
_SLOW = 0.02
_DELAYED = 0.3
_CHECK_SECONDS = 0.2
"""Virtual seconds between two checks of whether everything is done."""
_MORE_FAULTS = 4
_OMITTED = frozenset({"stack_trace", "next_attempt_at"})
"""Fields that depend on the machine: lines of source files, and the time of day."""
_ROOT = f"{Path(__file__).parents[1]}/"


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of a run; the seed decides everything else."""

    seed: int
    seconds: float = 6.0
    """Virtual seconds with faults."""
    quiet_seconds: float = 60.0
    """Virtual seconds without faults after which everything must have ended."""
    lease: float = 1.5
    poll: float = 1.0
    workers: int | None = None
    """None: one to three, as the seed says."""
    publishers: int = 2
    messages: int = 7
    """Publications of each publisher."""
    fault_rate: float = 0.03
    """The share of store operations with a fault."""
    only: Collection[str] | None = None
    """The addresses of the faults to apply; None applies all of the seed."""


class World:
    """Runs processes one turn at a time. The same settings give the same history, to the last bit."""

    def __init__(self, settings: Settings, database: AnyDatabase) -> None:
        self.settings, self.seed, self.database = settings, settings.seed, database
        self.clock = Clock()
        self.random = random.Random(f"{self.seed}/schedule")
        self.faults = FaultPlan(self.seed, settings.fault_rate * database.fault_factor, settings.only)
        self.history = History()
        self.trace: list[str] = []
        self.listeners: dict[Process, Callable[[float], None]] = {}
        self.processes: list[Process] = []
        self.all_processes: list[Process] = []
        self.operator_done = False
        self.rebuilds = False
        """Whether a rebuild of the projection was started and not finished."""
        self.quiet = False
        """Whether the time of faults is over."""
        self._outage_ends = 0.0
        self._closed = False
        self._digest = hashlib.sha256()
        self._lives: dict[str, int] = {}
        self.agenda = Agenda(self.clock)
        database.reset(self.clock)

    @property
    def digest(self) -> str:
        """A hash of everything that was recorded."""
        return self._digest.hexdigest()[:16]

    def close(self) -> None:
        """Ends all processes and forgets them; nothing is recorded any more."""
        self._closed = True
        # Otherwise `finally` blocks of the tasks that are freed next could start new ones.
        events._set_running_loop(None)
        for process in self.all_processes:
            process.alive = False
        self.all_processes, self.processes = [], []
        self.listeners.clear()
        self.agenda.timers.clear()
        self.agenda.ready.clear()
        self.database.forget_waiting()

    def record(self, process: str, event: str, fields: dict[str, Any]) -> None:
        """Adds a line to the trace."""
        if self._closed:
            return
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if name not in _OMITTED)
        # The digest must not depend on the folder of the clone.
        line = f"{self.clock.seconds:9.3f} {process:12} {event} {shown}".rstrip().replace(_ROOT, "")
        self._digest.update(line.encode(errors="replace"))
        self.trace.append(line)
        if event in _DEFECTS:
            self.history.errors.append(line)

    def latency(self, process: Process | None = None) -> float:
        """Seconds between a process and the database: mostly a few milliseconds, sometimes half a second.

        An operator is far away, so that what it acts on has often changed in the meantime.
        """
        slow = 0.3 if process is not None and process.name.startswith("operator") else _SLOW
        if self.random.random() < slow:
            return self.random.uniform(0.05, 0.6)
        return self.random.uniform(0.0005, 0.01)

    def reply_latency(self) -> float:
        """Seconds that a reply takes. For most it is part of `latency`, because each turn costs time to simulate."""
        return self.latency() if self.random.random() < _DELAYED else 0.0

    def next_fault(self, process: Process) -> Planned | None:
        process.operations += 1
        # A publisher makes few operations, so each of them is more likely to meet a fault.
        factor = 1 if process.name.startswith(("worker", "suspects")) else _MORE_FAULTS
        if self.is_unreachable:
            # Not recorded one by one: there are many.
            self.history.faults.append(ProcessFault(self.clock.milliseconds(), process.name))
            return Planned(OUTAGE_ADDRESS, Fault.REFUSED, 0.0)
        planned = self.faults.at(f"{process.name}#{process.operations}", factor)
        if planned is not None:
            self.history.faults.append(ProcessFault(self.clock.milliseconds(), process.name))
            process.record(f"fault: {planned.fault}", address=planned.address)
        return planned

    @property
    def is_unreachable(self) -> bool:
        """Whether the database refuses every operation now."""
        return self.clock.seconds < self._outage_ends

    def begin_outage(self) -> None:
        """Makes the database unreachable, for less than a lease."""
        if (planned := self.faults.outage()) is not None:
            seconds = self.settings.lease * (0.1 + 0.7 * planned.size)
            self._outage_ends = self.clock.seconds + seconds
            self.record("world", "fault: outage", {"seconds": round(seconds, 3)})

    def pause_seconds(self, fault: Planned) -> float:
        """Up to two and a half leases: some pauses outlast the lease, some do not."""
        return self.settings.lease * (0.3 + 2.2 * fault.size)

    async def listen(self, process: Process, wake: Callable[[], None]) -> None:
        """Calls `wake` some time after notifications, as long as the process runs."""
        loop = asyncio.get_running_loop()

        def hear(delay: float) -> None:
            loop.call_later(delay, wake)

        self.listeners[process] = hear
        await loop.create_future()

    def notify(self) -> None:
        """Notifies listening processes, best effort."""
        for process, hear in self.listeners.items():
            if process.alive and self.random.random() < _NOTICED:
                hear(self.random.uniform(0.0, 0.05))

    def start(self, role: str, program: Program, until: Callable[[], bool] = lambda: False) -> Process:
        """Starts a process. Some time after it died or ended it is started again, unless `until` holds then."""
        self._lives[role] = life = self._lives.get(role, 0) + 1
        process = Process(f"{role}.{life}", self.agenda, self.record)
        process.on_end = lambda: self._restart(role, program, until)
        self.processes.append(process)
        self.all_processes.append(process)
        process.start(program(self, process))
        return process

    def kill(self, process: Process) -> None:
        """Ends a process at once; the database rolls back its open transaction."""
        process.kill()
        self._forget(process)
        self.database.end(process)
        process.on_end()

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        self.agenda.add(self.clock.seconds + seconds, None, call)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Runs until the condition holds, or until the time limit; returns whether it holds."""
        agenda, end = self.agenda, self.clock.seconds + limit
        finished = False

        def check() -> None:
            nonlocal finished
            finished = finished or until()
            if not finished:
                self.call_later(_CHECK_SECONDS, check)

        check()
        while not finished:
            now = self.clock.seconds
            ready = [loop for loop in agenda.ready if loop.paused_until <= now]
            if not ready:
                if not agenda.advance(end):
                    self.clock.seconds = end
                    return until()
                continue
            loop = ready[0] if len(ready) == 1 else ready[int(self.random.random() * len(ready))]
            loop.turn()
            if loop.process.ended:
                self._remove_ended()
        return True

    def started_run(
        self, process: Process, delivery: str, consumer: str, fence: int | None, attempt: int, n: int | None
    ) -> int:
        """Records the start of a handler; returns its index."""
        process.record("run started", consumer=consumer, delivery=delivery, fence=fence, attempt=attempt)
        self.history.runs.append(
            Run(self.database.number(), None, process.name, delivery, consumer, fence, attempt, "unknown", n)
        )
        return len(self.history.runs) - 1

    def ended_run(self, process: Process, index: int, outcome: str) -> None:
        """Records the end of a handler."""
        run = self.history.runs[index]
        process.record("run ended", consumer=run.consumer, delivery=run.delivery, fence=run.fence, outcome=outcome)
        self.history.runs[index] = run._replace(end=self.database.number(), outcome=outcome)

    def _restart(self, role: str, program: Program, until: Callable[[], bool]) -> None:
        if not until():
            delay = self.random.uniform(0.1, self.settings.lease * 1.5)
            self.call_later(delay, lambda: until() or self.start(role, program, until))

    def _forget(self, process: Process) -> None:
        self.listeners.pop(process, None)
        self.history.ended[process.name] = self.clock.milliseconds()

    def _remove_ended(self) -> None:
        for process in [one for one in self.processes if one.alive and one.ended]:
            process.end()
            self._forget(process)
            self.database.end(process)
            process.on_end()
        self.processes = [process for process in self.processes if process.alive]


_DEFECTS = frozenset(
    {
        "attempt failed outside handler",
        "claim failed",
        "loop error",
        "periodic task failed",
        "process failed",
        "schedule failed",
        "settlement callback failed",
        "settlement failed",
        "slot failed",
        "takeover failed",
    }
)
"""Log events that no simulated fault explains: a lost connection is logged as an unavailable store."""
