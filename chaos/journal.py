"""Files through which the processes of the lab communicate: what was submitted, what was accepted, and what is to be done.

They are outside of the disk that a fault fills. A line is written with one call, so that a killed process leaves it
complete or not at all.
"""

import os
from collections import defaultdict
from pathlib import Path

ATTEMPTED, ACCEPTED, ROLLED_BACK, SINK = "attempted", "accepted", "rolled_back", "sink"
HOLD = "hold"


class Journal:
    """Append-only files in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_environment(cls) -> "Journal":
        return cls(Path(os.environ["CHAOS_JOURNAL"]))

    def write(self, file: str, load: str, item: str) -> None:
        """Adds one line."""
        target = os.open(self.directory / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(target, f"{load} {item}\n".encode())
        finally:
            os.close(target)

    def items(self, file: str, window: str) -> dict[str, list[str]]:
        """The items of one window by load, in the order in which they were written."""
        found: dict[str, list[str]] = defaultdict(list)
        path = self.directory / file
        for line in path.read_text().splitlines() if path.exists() else ():
            load, _, item = line.partition(" ")
            if window_of(item) == window:
                found[load].append(item)
        return found

    @property
    def window(self) -> str:
        """The current window; `hold` when nothing new is to be submitted."""
        path = self.directory / "window"
        return path.read_text() if path.exists() else HOLD

    def open_window(self, name: str) -> None:
        """Starts a window, or with `hold` ends it. Replaced in one step, so that no process reads half of it."""
        temporary = self.directory / "window.new"
        temporary.write_text(name)
        temporary.replace(self.directory / "window")
        if name != HOLD:
            for marker in self.directory.glob("idle-*"):
                marker.unlink(missing_ok=True)

    def mark_idle(self, load: str) -> None:
        """Everything that was submitted for this load has been answered."""
        (self.directory / f"idle-{load}").touch()

    def is_idle(self, load: str) -> bool:
        return (self.directory / f"idle-{load}").exists()


def window_of(item: str) -> str:
    return item.partition(".")[0]
