"""How long retries wait. There is one per process, and only tests change it: see `holdfast.testing`."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """`waits` is false where a test wants no waiting; `most_attempts` cuts every policy short."""

    waits: bool = True
    most_attempts: int | None = None

    def attempts(self, wanted: int) -> int:
        return wanted if self.most_attempts is None else min(wanted, self.most_attempts)

    def seconds(self, wanted: float) -> float:
        return wanted if self.waits else 0.0


PACE = Pace()
