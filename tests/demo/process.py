"""The demo as a user starts it: a separate process whose effects can be checked."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_SUMMARY = re.compile(
    r"published (\d+)  delivered (\d+)  retried (\d+)  dead (\d+) -> replayed (\d+)  crashes (\d+)\n"
    r"lost (\d+)  applied twice (\d+)\n\Z"
)


class Summary(NamedTuple):
    published: int
    delivered: int
    retried: int
    dead: int
    replayed: int
    crashes: int
    lost: int
    applied_twice: int


def summary_of(output: str) -> Summary:
    """The last two lines of the demo."""
    found = _SUMMARY.search(output)
    assert found, output
    return Summary(*map(int, found.groups()))


class Demo:
    """A running demo whose temporary files are all in one folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "demo", "--no-browser", *arguments],
            env={**os.environ, "TMPDIR": str(folder), "HOLDFAST_DSN": "sqlite:////nowhere/at/all.db"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, text: str) -> None:
        """Reads line by line until one has this text."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"{text!r} never came:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Reads the rest; returns the exit code."""
        assert self.process.stdout
        self.output += self.process.stdout.read()
        return self.process.wait(60)

    @property
    def workers(self) -> list[psutil.Process]:
        """The worker processes of this demo, at any depth of the process tree."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == str(self.folder) and process.pid != self.process.pid
        except psutil.Error:
            return False


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    """A demo that is ended afterwards, even if the test fails."""
    running = Demo(folder, *arguments)
    try:
        yield running
    finally:
        left = running.workers
        running.process.kill()
        running.process.communicate()
        for worker in left:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
