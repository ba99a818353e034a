"""Chaos: workers that are killed at random and at named points, sessions cut, servers restarted, until it is stopped."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

import psutil
import psycopg

from tests.engine.programs import crash
from tests.engine.programs.place import Place, Process
from tests.servers.postgres import PostgresServer

# A worker comes to these once in its life, or now and then.
RARE = {
    *("announce.committed", "renew.uncommitted", "renew.committed", "rescue.uncommitted", "rescue.committed"),
    *("catch_up.uncommitted", "catch_up.committed"),
}
_ROLES = ("holdfast", "holdfast", "holdfast-lease", "shop", None)


class Chaos:
    """Breaks things from separate threads; what went wrong in one is raised at the end."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place, self._seed = place, seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self.kills = 0

    def start(self, act: Callable[[random.Random], None]) -> None:
        """Runs one kind of mischief."""
        chance = random.Random(f"{self._seed} {len(self._threads)}")

        def run() -> None:
            try:
                act(chance)
            except BaseException as error:  # noqa: BLE001
                self._errors.append(error)

        thread = threading.Thread(target=run, name=f"chaos-{len(self._threads)}")
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Faults stop here; the healing phase begins."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    def kill_workers(
        self, chance: random.Random, start: Callable[[str], Process], points: "Points", *, patience: float = 8.0
    ) -> None:
        """Keeps one worker alive: it dies at a named point or, if it does not come there in time, at any moment."""
        while not self._over.is_set():
            point = points.following()
            worker = start(f"{point}@{1 if point in RARE else chance.randint(1, 6)}" if point else "")
            # Several workers race for an expired lease, and each needs half a lease of contact first: give it time.
            limit = 3 * patience if point in RARE else patience
            deadline = time.monotonic() + (limit if point else chance.uniform(0.8, 6.0))
            while worker.alive and time.monotonic() < deadline and not self._over.is_set():
                time.sleep(0.02)
            worker.kill_family()
            self.kills += 1

    def freeze(self, chance: random.Random, worker: Process, lease: float) -> None:
        """Stops a worker for longer than its lease now and then; what it then still believes to hold is another's."""
        while not self._over.wait(chance.uniform(1.0, 4.0)):
            worker.stopped()
            self._over.wait(lease * chance.uniform(1.2, 2.0))
            worker.resumed()

    def kill_children(self, chance: random.Random, supervisor: Process) -> None:
        """Ends one of a supervisor's worker processes now and then; it is to be replaced."""
        while not self._over.wait(chance.uniform(2.0, 6.0)):
            with suppress(psutil.NoSuchProcess, IndexError):
                chance.choice(supervisor.children()).kill()
                self.kills += 1

    def cut_sessions(self, chance: random.Random) -> None:
        """Ends sessions on the server, of one role or of all, in bursts: only a worker in unbroken contact takes over."""
        while not self._over.wait(chance.uniform(2.5, 5.0)):
            for _ in range(chance.randint(1, 8)):
                with suppress(psycopg.OperationalError):  # the server may be down just now
                    self._place.terminate_backends(chance.choice(_ROLES))
                self._over.wait(chance.uniform(0.05, 0.3))

    def restart_server(self, chance: random.Random, server: PostgresServer, times: int) -> None:
        """Kills the server with all its children, and starts it again on the same data."""
        for _ in range(times):
            if self._over.wait(chance.uniform(3.0, 6.0)):
                return
            server.kill()
            self._over.wait(chance.uniform(0.2, 1.0))
            server.start()


class Points:
    """Every point a worker comes to, in a random order, with plain random moments between."""

    def __init__(self, place: Place, seed: int, wanted: Sequence[str] = crash.WORKER_POINTS) -> None:
        self._markers, self._wanted = place.markers, wanted
        self._chance = random.Random(seed)
        self._ahead: list[str] = []
        self._lock = threading.Lock()

    def following(self) -> str:
        """The next point at which no worker has died yet; all of them again, when there is none."""
        with self._lock:
            if not self._ahead:
                self._ahead = [*(self.missing() or self._wanted), ""]
                self._chance.shuffle(self._ahead)
            return self._ahead.pop()

    def missing(self) -> list[str]:
        return [point for point in self._wanted if not (self._markers / f"crashed.{point}").exists()]
