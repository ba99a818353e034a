"""Virtual time: it moves only when no process can run."""

from datetime import UTC, datetime

EPOCH = 1_800_000_000.0
"""Unix time at the start of every run."""


class Clock:
    """Seconds since the start of the run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return EPOCH + self.seconds

    def time_ns(self) -> int:
        return self.milliseconds() * 1_000_000

    def timestamp(self) -> str:
        """The time as PostgreSQL reads it."""
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC).isoformat()

    def milliseconds(self) -> int:
        """Unix time in milliseconds, which is the database's clock."""
        return round((EPOCH + self.seconds) * 1000)
