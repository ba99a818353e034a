"""`no_wait`: retries without waiting, for tests of code that retries."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.retry import check_attempts
from holdfast.outbound.test_overrides import TEST_OVERRIDES


@contextmanager
def no_wait(attempts: int | None = None) -> Iterator[None]:
    """Inside the block, `with_retry` and the service clients of this process do not wait between attempts.

    `attempts` is an upper limit for the attempts of every policy; 1 turns retries off.

    Examples:
        >>> with no_wait(attempts=2):
        ...     pass
    """
    before = TEST_OVERRIDES.waits, TEST_OVERRIDES.max_attempts
    TEST_OVERRIDES.waits = False
    TEST_OVERRIDES.max_attempts = None if attempts is None else check_attempts(attempts)
    try:
        yield
    finally:
        TEST_OVERRIDES.waits, TEST_OVERRIDES.max_attempts = before
