"""Runs one command of a subject in a separate process and reads its output."""

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from types import TracebackType
from typing import Any, Self

from bench.environment import ROOT, interpreter
from bench.peers.protocol import Unable
from bench.revisions import checkout
from bench.subject import Subject

Answer = dict[str, Any]


class Failed(Exception):
    """A subject failed. The text is safe to print in a report; `last_words` is its output, for debugging."""

    def __init__(self, what: str, last_words: str = "") -> None:
        last_line = last_words.rpartition("\n")[2].strip()
        super().__init__(f"{what}: {last_line}" if last_line else what)
        self.last_words = last_words


class Child:
    """One process of a subject. Closing its input asks it to stop; it is killed if it does not."""

    def __init__(self, subject: Subject, command: str, where: str, **arguments: Any) -> None:
        given = {"where": where, "settings": dict(subject.settings), **arguments}
        self._name = f"{subject.name} {command}"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))
        }
        root = ROOT if subject.revision is None else checkout(subject.revision)
        python = interpreter(subject.environment) if subject.revision is None else root / ".venv" / "bin" / "python"
        self._process = subprocess.Popen(
            [str(python), "-m", subject.module, command, json.dumps(given)],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str, seconds: float) -> Answer:
        """The next answer of this name; `Unable` when the subject lacks what was asked, `Failed` when it broke."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{self._name} said nothing for {seconds:.0f} s", self._last_words()) from None
            if not line:
                raise Failed(f"{self._name} ended without an answer", self._last_words())
            answer: Answer = json.loads(line)
            if answer["event"] == "unable":
                raise Unable(answer["reason"])
            if answer["event"] == event:
                return answer

    def stop(self) -> None:
        """Asks it to stop; what it has to say comes as its last answer."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Returns when the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # A grandchild may still hold the other end; the reader then ends with it.
        self._reader.join(1)
        if not self._reader.is_alive():
            self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _last_words(self) -> str:
        self._errors.seek(0)
        return "\n".join(self._errors.read().splitlines()[-8:])


def ask(subject: Subject, command: str, where: str, *, seconds: float = 300.0, **arguments: Any) -> Answer:
    """Runs one command to its end and returns its answer."""
    with Child(subject, command, where, **arguments) as child:
        return child.wait_for("about" if command == "about" else "done", seconds)
