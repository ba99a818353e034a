"""Supervisor of several worker processes: starts them, replaces crashed ones and forwards signals."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from types import FrameType

from holdfast._log import get_logger
from holdfast.app.worker.app_loader import load_app
from holdfast.app.worker.service_manager import ServiceManager
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.parent_watchdog import child_environment, is_child
from holdfast.engine.worker.process_limits import check_memory
from holdfast.runtime.loop import lock_engine, wait_for_store
from holdfast.runtime.signal_event import SignalEvent

log = get_logger("holdfast.supervisor")

_LONGEST_PAUSE = 30.0


def run_workers(spec: str, options: WorkerOptions, processes: int = 1) -> int:
    """Runs a worker for the app `spec` names, in this process or in several; returns the exit code."""
    app = load_app(spec)
    if runs_here(options, processes):
        app.run(options=options)
        return 0
    check_memory(options)
    # A store that allows one engine allows its child processes: the supervisor holds the lock, and they inherit it.
    with contextlib.ExitStack() as engine:
        asyncio.run(wait_for_store(partial(lock_engine, engine, app.store), None, patient=not options.until_idle))
        commands = [worker_command(spec, options, index=index) for index in range(processes)]
        return _Supervisor(commands, options.grace, ServiceManager.from_environment()).run()


def runs_here(options: WorkerOptions, processes: int) -> bool:
    """Whether this process runs the worker, instead of child processes that it replaces."""
    return is_child() or (processes == 1 and (options.until_idle or not options.recycles))


def worker_command(spec: str, options: WorkerOptions, *, suspects: bool = False, index: int = 0) -> list[str]:
    """The command line of a child worker with the same options; each child has its own port for metrics."""
    command = [sys.executable, "-m", "holdfast", "worker", "--app", spec]
    if options.queues:
        command += ["--queues", ",".join(f"{name}:{slots}" for name, slots in options.queues.items())]
    command += ["--concurrency", str(options.concurrency), "--generation", str(options.generation)]
    command += ["--lease", _seconds(options.lease), "--grace", _seconds(options.grace)]
    if options.metrics_port and not suspects:
        command += ["--metrics-port", str(options.metrics_port + index), "--metrics-host", options.metrics_host]
    if options.max_deliveries is not None and not suspects:
        command += ["--max-deliveries", str(options.max_deliveries)]
    if options.max_memory is not None and not suspects:
        command += ["--max-memory", str(options.max_memory)]
    if options.until_idle or suspects:
        command.append("--until-idle")
    if suspects:
        command.append("--suspects")
    return command


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g}s"


class _Supervisor:
    """Keeps child processes running. A crashed one is replaced, after a pause that grows with repeated crashes."""

    def __init__(self, commands: Sequence[Sequence[str]], grace: timedelta, service: ServiceManager) -> None:
        self._service, self._ping_due = service, 0.0
        self._commands, self._processes, self._grace = commands, len(commands), grace.total_seconds()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = SignalEvent()
        self._signalled_pids: set[int] = set()
        self._pauses = [0.0] * len(commands)
        self._due = [0.0] * len(commands)

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        failed = False
        self._service.ready()
        while not self._stopping.is_set():
            self._ping()
            for index in range(self._processes):
                if index not in self._children and time.monotonic() >= self._due[index]:
                    command = self._commands[index]
                    child = subprocess.Popen(command, close_fds=False, env=child_environment())  # noqa: S603
                    self._children[index] = child
                    log.info("worker process started", index=index, pid=self._children[index].pid)
            self._stopping.wait(0.2)
            for index, child in list(self._children.items()):
                if (code := child.poll()) is not None:
                    del self._children[index]
                    self._pauses[index] = min(self._pauses[index] * 2 or 0.5, _LONGEST_PAUSE) if code else 0.0
                    self._due[index] = time.monotonic() + self._pauses[index]
                    failed = failed or code != 0
                    if code:
                        log.error("worker process died", index=index, pid=child.pid, exit_code=code)
                    elif "--until-idle" in self._commands[index]:
                        self._due[index] = float("inf")
            if not self._children and all(due == float("inf") for due in self._due):
                return int(failed)
        self._service.stopping()
        return self._wait()

    def _ping(self) -> None:
        interval, now = self._service.ping_interval, time.monotonic()
        if interval is not None and now >= self._ping_due:
            self._ping_due = now + interval
            self._service.ping()

    def _wait(self) -> int:
        deadline = time.monotonic() + self._grace + 10
        code = 0
        for child in self._children.values():
            if child.pid not in self._signalled_pids:
                # The signal arrived while this child was starting.
                child.terminate()
            try:
                ended = child.wait(max(0.1, deadline - time.monotonic()))
                # A child that got the signal before it installed its handlers ended as requested.
                code = max(code, 0 if -ended in (signal.SIGTERM, signal.SIGINT) else abs(ended))
            except subprocess.TimeoutExpired:
                log.error("worker process killed", pid=child.pid)
                child.kill()
                child.wait()
                code = 1
        return min(code, 1)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        for child in self._children.values():
            if child.poll() is None:
                self._signalled_pids.add(child.pid)
                os.kill(child.pid, number)
