"""Whether a process can do its work: the store can be reached and its tables fit."""

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, SchemaMismatch
from holdfast.engine.log_fields import error_fields

log = get_logger("holdfast.health")


class Readiness:
    """What `/readyz` answers. It is open to everybody, so a reason names no host, database or user.

    The log does, once for each change.
    """

    def __init__(self) -> None:
        self._logged: str | None = None

    def ready(self) -> None:
        """The store answered, and its tables fit."""
        if self._logged is not None:
            self._logged = None
            log.info("ready")

    def unready(self, error: HoldfastError | TimeoutError) -> str:
        """The reason for people why the process is not ready."""
        if isinstance(error, TimeoutError):
            reason = "the store did not answer in time"
        elif isinstance(error, SchemaMismatch):
            reason = "the store's tables do not match this release"
        else:
            reason = "the store cannot be reached"
        if self._logged != reason:
            self._logged = reason
            log.warning("not ready", reason=reason, **error_fields(error))
        return reason
