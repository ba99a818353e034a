"""One worker process of the demo: `python -m holdfast.interfaces.demo.worker`.

The same as `holdfast worker --app holdfast.interfaces.demo.app:hf`, but it also stops when the demo process is gone.
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

from holdfast import WorkerOptions
from holdfast.app.worker.supervisor import run_workers

APP = "holdfast.interfaces.demo.app:hf"
LEASE = timedelta(seconds=2)
"""Short, so that the takeover is visible. The default is 30 s."""


def main() -> int:
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return run_workers(APP, WorkerOptions(concurrency=16, lease=LEASE, grace=timedelta(seconds=3)))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
