"""Readiness: whether the store can be reached and its tables match this release."""

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, SchemaMismatch
from holdfast.engine.telemetry.log_fields import error_fields

log = get_logger("holdfast.health")


class Readiness:
    """The response of `/readyz`. It needs no authentication, so a reason contains no host, database or user.

    The log contains them, once for each change.
    """

    def __init__(self) -> None:
        self._logged: str | None = None

    def ready(self) -> None:
        """Records that the store responds and its tables match."""
        if self._logged is not None:
            self._logged = None
            log.info("readiness check passed")

    def unready(self, error: HoldfastError | TimeoutError) -> str:
        """Records that the process is not ready; returns the reason for people."""
        if isinstance(error, TimeoutError):
            reason = "the store did not respond in time"
        elif isinstance(error, SchemaMismatch):
            reason = "the store's tables do not match this release"
        else:
            reason = "the store cannot be reached"
        if self._logged != reason:
            self._logged = reason
            log.warning("readiness check failed", reason=reason, **error_fields(error))
        return reason
