"""One run of the demo: set up, play the scenario, check the invariants, clean up."""

import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

from rich.console import Console

from holdfast.interfaces.demo import scenario
from holdfast.interfaces.demo.config import DemoConfig
from holdfast.interfaces.demo.customers import Customers
from holdfast.interfaces.demo.invariants import DemoResult, check_invariants
from holdfast.interfaces.demo.runner import Interrupted, ScenarioRunner
from holdfast.interfaces.demo.screen import open_screen
from holdfast.interfaces.demo.services import OutsideServices
from holdfast.interfaces.demo.shop import open_shop
from holdfast.interfaces.demo.worker_processes import WorkerProcesses, WorkersFailed
from holdfast.ops.service import Operations
from holdfast.runtime.signal_event import SignalEvent
from holdfast.runtime.store_factory import open_store

SHORTEST_SECONDS = 10.0
_WORKERS = 2
_REFERENCE_SECONDS = 20.0
_DEFAULT_SECONDS = 60.0
_CLOSING_SECONDS = 1.5
_ORDERS_PER_SECOND = 20.0
_CONSOLE_NEEDS = ("starlette", "jinja2", "uvicorn")

KEPT, BROKEN, LEFT = 0, 1, 130
"""Exit codes: all promises kept; a promise broken; interrupted before the end."""


def run_demo(
    console: Console, seconds: float | None = None, dsn: str | None = None, *, port: int = 0, browser: bool = False
) -> int:
    """Runs the demo and returns its exit code. Serves the web console on `port` (0: any free port) and opens a browser
    if `browser` is set.

    With `seconds` the scenario is played once, in about that time; without it, repeatedly until Ctrl-C. All processes,
    files and schemas of the demo are removed at the end, also after an error.
    """
    began = monotonic()
    with ExitStack() as afterwards:
        stop_requested, force_stop = afterwards.enter_context(_interrupts())
        runner = _set(afterwards, console, seconds, dsn, stop_requested, port, browser)
        try:
            try:
                scenario.start_shop(runner)
                scenario.play(runner)
                while seconds is None:
                    scenario.play(runner)
                runner.until(lambda _: False, at_most=began + seconds - _CLOSING_SECONDS - monotonic())
            except Interrupted:
                runner.say("closing: finishing accepted orders first (press Ctrl-C again to quit immediately)")
            runner.interrupted = force_stop
            scenario.finish(runner)
        except Interrupted:
            runner.workers.close(timeout=0)
            runner.close()
            console.print("stopped before all work was done; results were not checked")
            return LEFT
        except WorkersFailed as failed:
            runner.close()
            console.print(str(failed), soft_wrap=True)
            return BROKEN
        runner.show()
        runner.workers.close()
        runner.close()
        services = runner.services
        tally = check_invariants(
            runner.shop.database, services.mail.received, services.partner.received, runner.workers.crashes
        )
        _report(console, tally, runner.customers.left)
        return exit_code(tally, cut_short=seconds is not None and stop_requested.is_set())


def exit_code(tally: DemoResult, *, cut_short: bool = False) -> int:
    """The exit code for a result."""
    if tally.problems:
        return BROKEN
    return LEFT if cut_short else KEPT


def _set(
    afterwards: ExitStack,
    console: Console,
    seconds: float | None,
    dsn: str | None,
    stop_requested: SignalEvent,
    port: int,
    browser: bool,
) -> ScenarioRunner:
    """Creates everything the scenario needs, and registers its removal."""
    pace = (seconds or _DEFAULT_SECONDS) / _REFERENCE_SECONDS
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    afterwards.callback(shutil.rmtree, folder, ignore_errors=True)
    services = OutsideServices()
    afterwards.callback(services.close)
    config = DemoConfig(
        dsn=dsn or f"sqlite:///{folder / 'shop.db'}",
        schema="holdfast" if dsn is None else f"holdfast_demo_{secrets.token_hex(4)}",
        mail_port=services.mail.port,
        webhook_port=services.partner.port,
    )
    shop = open_shop(config)
    store = shop.hf.store
    afterwards.callback(store.close_sync)
    store.migrate()
    afterwards.callback(shop.database.drop)
    address = _serve_console(afterwards, config, port)
    title = f"Holdfast demo   a shop with {_WORKERS} worker processes on {store.name}"
    screen = open_screen(console, f"{title}\nthe web console is at {address}" if address else title)
    afterwards.callback(screen.close)
    if address and browser:
        _open_browser(address)
    shop.database.create_tables()
    services.restore()
    # SQLite allows one engine; this process holds its lock, and the workers are its children.
    afterwards.enter_context(store.engine_lock())
    workers = WorkerProcesses(config, shop.hf.ops.sync, _WORKERS, folder / "workers.log")
    afterwards.callback(workers.close)
    customers = Customers(shop, per_second=_ORDERS_PER_SECOND / max(pace, 1))
    afterwards.callback(customers.stop)
    return ScenarioRunner(
        shop, services, workers, customers, screen, stop_requested, pace, address if seconds is None else None
    )


@contextmanager
def _interrupts() -> Iterator[tuple[SignalEvent, SignalEvent]]:
    """Two events: stop requested, and stop immediately."""
    stop_requested, force_stop = SignalEvent(), SignalEvent()

    def signaled(number: int, _frame: FrameType | None) -> None:
        if stop_requested.is_set() or number != signal.SIGINT:
            force_stop.set()
        stop_requested.set()

    before = {number: signal.signal(number, signaled) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop_requested, force_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(console: Console, tally: DemoResult, left: int) -> None:
    notes = [f"{left} more orders were rolled back together with their events."]
    if tally.received_twice:
        notes.append(f"{tally.received_twice} mails or webhooks were received twice, with the same id.")
    soft_wrap = not console.is_terminal
    console.print(" ".join(notes), soft_wrap=soft_wrap)
    for problem in tally.problems:
        console.print(f"BROKEN: {problem}", style="red", soft_wrap=soft_wrap)
    console.print(tally.summary, style="bold", soft_wrap=True)


def _serve_console(afterwards: ExitStack, config: DemoConfig, port: int) -> str | None:
    """Serves the console in the background; returns its URL, or None if `holdfast[console]` is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _CONSOLE_NEEDS):
        return None
    from holdfast.interfaces.console.user import Role
    from holdfast.interfaces.server.standalone import serve_in_thread

    store = open_store(config.dsn, config.schema, role="holdfast-console", pool_size=2)
    # Operator, not admin: a visitor can replay dead letters, but not rerun delivered work.
    return afterwards.enter_context(serve_in_thread(Operations(store), port=port, actor="visitor", role=Role.OPERATOR))


def _open_browser(address: str) -> None:
    """Opens a graphical browser; never a text browser, which would take over the terminal."""
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if graphical and sys.stdout.isatty():
        webbrowser.open(address)
