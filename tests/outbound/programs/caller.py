"""A process that calls a dependency through a breaker until it is stopped. It logs each call at once.

Arguments: kind of circuits, where they are, directory. The files `up`, `slow` and `stop` in the directory say how the
dependency does, whether a probe takes long, and when to end; `calls` is the common record.
"""

import os
import sys
import time
from pathlib import Path

from holdfast import CircuitBreaker, CircuitOpen, RedisCircuits, StoreCircuits
from holdfast.core.circuit import Result
from holdfast.runtime.store_factory import open_store

COOLDOWN, PROBE = 0.15, 1.5


def main(kind: str, where: str, directory: Path) -> None:
    circuits = RedisCircuits(where) if kind == "redis" else StoreCircuits(open_store(where, "holdfast"))
    breaker = CircuitBreaker("dependency", circuits, threshold=3, cooldown=COOLDOWN, jitter=0.5, probe_timeout=PROBE)
    record = os.open(directory / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, probe: bool) -> None:
        os.write(record, f"{time.monotonic()} {os.getpid()} {what} {int(probe)}\n".encode())

    note("ready", False)
    while not (directory / "stop").exists():
        try:
            permit = breaker.sync.admit()
        except CircuitOpen:
            time.sleep(0.005)
            continue
        note("begin", permit.probe)
        time.sleep(0.4 if permit.probe and (directory / "slow").exists() else 0.01)
        result = Result.SUCCEEDED if (directory / "up").exists() else Result.FAILED
        note("end", permit.probe)
        breaker.sync.settle(permit, result, "down")
        note(result, permit.probe)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
