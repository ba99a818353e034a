"""One run of the demo: sets the stage, has the story told, counts, and leaves nothing behind."""

import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

from rich.console import Console

from holdfast.interfaces.demo import story
from holdfast.interfaces.demo.browser import open_console, show
from holdfast.interfaces.demo.crew import Crew, CrewFailed
from holdfast.interfaces.demo.customers import Customers
from holdfast.interfaces.demo.place import Place
from holdfast.interfaces.demo.screen import open_screen
from holdfast.interfaces.demo.shop import open_shop
from holdfast.interfaces.demo.stage import Interrupted, Stage
from holdfast.interfaces.demo.tally import Tally, take_tally
from holdfast.interfaces.demo.world import World

SHORTEST_SECONDS = 10.0
_WORKERS = 2
_PACE_SECONDS = 20.0
_CALM_SECONDS = 60.0
_CLOSING_SECONDS = 1.5
_ORDERS_PER_SECOND = 20.0

KEPT, BROKEN, LEFT = 0, 1, 130
"""Exit codes: every promise was kept; one was broken; the visitor left before the end."""


def run_demo(
    console: Console, seconds: float | None = None, dsn: str | None = None, *, port: int = 0, browser: bool = False
) -> int:
    """Runs the demo and returns its exit code. The web console is at `port`, or at one that is free; a browser opens
    on it if asked to.

    With `seconds` the story is told once, in about that time; without, again and again until Ctrl-C. Whatever happens,
    afterwards there is no process, file or schema of the demo left.
    """
    began = monotonic()
    with ExitStack() as afterwards:
        asked, insisted = afterwards.enter_context(_interrupts())
        stage = _set(afterwards, console, seconds, dsn, asked, port, browser)
        try:
            try:
                story.open_doors(stage)
                story.tell(stage)
                while seconds is None:
                    story.tell(stage)
                stage.until(lambda _: False, at_most=began + seconds - _CLOSING_SECONDS - monotonic())
            except Interrupted:
                stage.say("closing: what was ordered is finished first (Ctrl-C again leaves at once)")
            stage.interrupted = insisted
            story.close_doors(stage)
        except Interrupted:
            stage.crew.close(patience=0)
            stage.close()
            console.print("left before the work was done, so nothing was counted")
            return LEFT
        except CrewFailed as failed:
            stage.close()
            console.print(str(failed), soft_wrap=True)
            return BROKEN
        stage.show()
        stage.crew.close()
        stage.close()
        world = stage.world
        tally = take_tally(stage.shop.database, world.mail.received, world.partner.received, stage.crew.crashes)
        _report(console, tally, stage.customers.left)
        return exit_code(tally, cut_short=seconds is not None and asked.is_set())


def exit_code(tally: Tally, *, cut_short: bool = False) -> int:
    """What the shell is told."""
    if tally.problems:
        return BROKEN
    return LEFT if cut_short else KEPT


def _set(
    afterwards: ExitStack,
    console: Console,
    seconds: float | None,
    dsn: str | None,
    asked: threading.Event,
    port: int,
    browser: bool,
) -> Stage:
    """Makes everything the story needs, and sees to it that all of it goes away again."""
    pace = (seconds or _CALM_SECONDS) / _PACE_SECONDS
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    afterwards.callback(shutil.rmtree, folder, ignore_errors=True)
    world = World()
    afterwards.callback(world.close)
    place = Place(
        dsn=dsn or f"sqlite:///{folder / 'shop.db'}",
        schema="holdfast" if dsn is None else f"holdfast_demo_{secrets.token_hex(4)}",
        mail_port=world.mail.port,
        webhook_port=world.partner.port,
    )
    shop = open_shop(place)
    store = shop.hf.store
    afterwards.callback(shop.database.close)
    afterwards.callback(store.close_sync)
    store.migrate()
    afterwards.callback(shop.database.drop)
    address = open_console(afterwards, place, port)
    title = f"Holdfast demo   a shop with {_WORKERS} worker processes on {store.name}"
    screen = open_screen(console, f"{title}\nthe web console is at {address}" if address else title)
    afterwards.callback(screen.close)
    if address and browser:
        show(address)
    shop.database.create_tables()
    world.heal()
    # SQLite bears one engine: this process is its head, and the workers are of its family.
    afterwards.enter_context(store.engine_lock())
    crew = Crew(place, shop.hf.ops.sync, _WORKERS, folder / "workers.log")
    afterwards.callback(crew.close)
    customers = Customers(shop, per_second=_ORDERS_PER_SECOND / max(pace, 1))
    afterwards.callback(customers.stop)
    return Stage(shop, world, crew, customers, screen, asked, pace, address if seconds is None else None)


@contextmanager
def _interrupts() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: somebody asked the demo to end, and somebody who does not want to wait for it."""
    asked, insisted = threading.Event(), threading.Event()

    def signalled(number: int, _frame: FrameType | None) -> None:
        if asked.is_set() or number != signal.SIGINT:
            insisted.set()
        asked.set()

    before = {number: signal.signal(number, signalled) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield asked, insisted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(console: Console, tally: Tally, left: int) -> None:
    notes = [f"{left} more customers left at the last moment: their orders rolled back, and so did the events."]
    if tally.received_twice:
        notes.append(f"{tally.received_twice} mails or webhooks came twice, under the same id as the first time.")
    soft_wrap = not console.is_terminal
    console.print(" ".join(notes), soft_wrap=soft_wrap)
    for problem in tally.problems:
        console.print(f"BROKEN: {problem}", style="red", soft_wrap=soft_wrap)
    console.print(tally.summary, style="bold", soft_wrap=True)
