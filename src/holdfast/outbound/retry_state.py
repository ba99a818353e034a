"""The state of one retried call: decides after each failure whether and when to try again. Used by async and blocking calls."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast._log import get_logger
from holdfast.core.failures.classify import Rules, classify
from holdfast.core.failures.exception_info import carried_status
from holdfast.core.failures.verdict import VerdictKind
from holdfast.core.redaction.redact import hidden, redacted
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.correlation import correlation
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.values.text import safe_str, sanitize, type_name
from holdfast.outbound.budget import RetryBudget
from holdfast.outbound.test_overrides import TEST_OVERRIDES

log = get_logger("holdfast.retry")

_ERROR_LIMIT = 2_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, as passed to the function; `number` starts at 1.

    `idempotency_key` is the same in all attempts of a call. `deadline` is a time of `time.monotonic()`.
    """

    number: int = 1
    max_attempts: int = 1
    idempotency_key: str | None = None
    deadline: float | None = None

    @property
    def remaining(self) -> float | None:
        """Seconds left for this attempt, to pass on as a timeout; None without a limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class RetryState:
    """Created after the first failure. `failed` returns the wait before the next attempt, or None if there is none."""

    __slots__ = ("_budget", "_deadline", "_fields", "_key", "_operation", "_policy", "_rules", "_started", "number")

    def __init__(
        self,
        operation: str,
        policy: RetryPolicy,
        started: float,
        deadline: float | None,
        idempotency_key: str | None,
        rules: Rules | None,
        budget: RetryBudget | None,
        fields: Mapping[str, object] | None,
    ) -> None:
        self._operation, self._policy, self._started, self._deadline = operation, policy, started, deadline
        self._key, self._rules, self._budget, self._fields = idempotency_key, rules, budget, fields
        self.number = 1

    @property
    def max_attempts(self) -> int:
        return TEST_OVERRIDES.attempts(self._policy.attempts)

    def failed(self, error: Exception, began: float) -> float | None:
        """Returns the seconds before the next attempt, or None after the last one; the error then has a note with the reason."""
        now = time.monotonic()
        wait, why = self._decide(error, now)
        fields = self._log_fields() | {
            "latency_ms": round((now - began) * 1000, 1),
            "error": redacted(sanitize(safe_str(error), _ERROR_LIMIT), hidden()),
            "error_type": type_name(type(error)),
            "retryable": wait is not None,
        }
        status = carried_status(error)
        if status is not None:
            fields["http_status"] = status
        if wait is None:
            log.warning("operation failed", **fields | {"reason": why})
            error.add_note(
                f"{self._operation} failed at attempt {self.number} of {self.max_attempts}, "
                f"{now - self._started:.3f} s after its start: {why}"
            )
            return None
        at = datetime.now(UTC) + timedelta(seconds=wait)
        log.warning(
            "operation retried", **fields | {"next_attempt_in": round(wait, 3), "next_attempt_at": at.isoformat()}
        )
        self.number += 1
        return wait

    def succeeded(self) -> None:
        """Logs a success that needed retries."""
        elapsed = round((time.monotonic() - self._started) * 1000, 1)
        log.info("operation succeeded after retries", **self._log_fields() | {"elapsed_ms": elapsed})

    def _decide(self, error: Exception, now: float) -> tuple[float | None, str]:
        rules = () if self._rules is None else (self._rules,)
        verdict = classify(error, *rules, now=datetime.now(UTC))
        if verdict.kind is not VerdictKind.RETRY:
            return None, f"it is classified as {verdict.kind}"
        if self.number >= self.max_attempts:
            return None, "no attempt is left"
        if verdict.after is None:
            delay = self._policy.delay(self.number, random.random())  # noqa: S311
        else:
            delay = self._policy.clamp(verdict.after)
        wait = TEST_OVERRIDES.seconds(delay.total_seconds())
        if self._deadline is not None and now + wait >= self._deadline:
            return None, "the next attempt would start after the deadline"
        if self._budget is not None and not self._budget.may_retry():
            return None, "the retry budget is used up: too many calls are being retried"
        return wait, ""

    def _log_fields(self) -> dict[str, object]:
        # Our fields replace fields of the same name that the caller gave.
        fields = log_fields(correlation()) | log_fields(self._fields or {})
        fields |= {"operation": self._operation, "attempt": self.number, "max_attempts": self.max_attempts}
        if self._key is not None:
            fields["idempotency_key"] = self._key
        return fields
