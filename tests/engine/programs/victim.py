"""Workers that are forked from a process that has imported everything, so that many can be started and killed."""

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

from holdfast.engine.worker.options import WorkerOptions
from tests.engine.programs import lab


def run(dsn: str, lease: float, directory: str) -> None:
    """One worker of the laboratory, until it is killed."""
    os.environ["HOLDFAST_TEST_PLACE"] = directory
    lab.build(dsn).run(options=WorkerOptions(lease=timedelta(seconds=lease), concurrency=4, cron=False))


def nursery(directory: Path) -> Callable[[str, float], BaseProcess]:
    """Starts workers that note what they do in this directory."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def start(dsn: str, lease: float) -> BaseProcess:
        process = context.Process(target=run, args=(dsn, lease, str(directory)), daemon=True)
        process.start()
        return process

    return start
