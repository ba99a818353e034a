"""Overrides of waits and attempts for tests. One value per process; only `holdfast.testing` changes it."""

from dataclasses import dataclass


@dataclass(slots=True)
class TestOverrides:
    """`waits` false removes the waits between attempts; `max_attempts` is an upper limit for every policy."""

    __test__ = False  # not a test class, although its name begins like one

    waits: bool = True
    max_attempts: int | None = None

    def attempts(self, policy_attempts: int) -> int:
        return policy_attempts if self.max_attempts is None else min(policy_attempts, self.max_attempts)

    def seconds(self, delay: float) -> float:
        return delay if self.waits else 0.0


TEST_OVERRIDES = TestOverrides()
