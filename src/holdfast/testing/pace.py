"""The switch for tests of code that retries: as many attempts as ever, and no waiting in between."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.retry import check_attempts
from holdfast.outbound.pace import PACE


@contextmanager
def no_waiting(attempts: int | None = None) -> Iterator[None]:
    """Inside, `with_retry` and the service clients of this process do not wait between attempts.

    `attempts` makes every policy that allows more give up after so many; 1 turns retries off.

    >>> with no_waiting(attempts=2):
    ...     pass
    """
    before = PACE.waits, PACE.most_attempts
    PACE.waits = False
    PACE.most_attempts = None if attempts is None else check_attempts(attempts)
    try:
        yield
    finally:
        PACE.waits, PACE.most_attempts = before
