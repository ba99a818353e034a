"""Records refused requests in the log, and those of authenticated callers in the audit log."""

import time
from collections import deque
from collections.abc import Callable

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError
from holdfast.core.values.text import sanitize
from holdfast.ops.steps import run_steps, transact
from holdfast.stores.admin.actions import record
from holdfast.stores.protocol import Store

log = get_logger("holdfast.refusals")

UNAUTHENTICATED = "unauthenticated"
_MAX_PER_MINUTE = 60
_MINUTE = 60.0


class Refusals:
    """Records refused requests, at most 60 per minute.

    Requests of authenticated callers (a token, a signed-in user) are audited. Anonymous ones are only logged: the audit log
    is kept permanently, and anyone who can connect could fill it.
    """

    def __init__(self, kind: str, store: Callable[[], Store]) -> None:
        self._kind, self._store = kind, store
        self._authenticated, self._anonymous = RateLimit(), RateLimit()

    async def record(self, actor: str, method: str, path: str, why: str, came_from: str | None) -> None:
        """Records that a request of `actor` was refused. Errors of the store are logged, not raised."""
        authenticated = actor != UNAUTHENTICATED
        unrecorded = (self._authenticated if authenticated else self._anonymous).take()
        if unrecorded is None:
            return
        path, method = sanitize(path, 200), sanitize(method, 20)
        more = {"unrecorded": unrecorded} if unrecorded else {}
        log.warning(
            "request refused",
            actor_key=actor,
            operation=f"{method} {path}",
            error=why,
            interface=self._kind,
            client=came_from,
            **more,
        )
        if not authenticated:
            return
        entry = record(actor, "refused", self._kind, path, sanitize(why, 500), {"method": method, "from": came_from})
        try:
            await run_steps(self._store(), transact(entry))
        except HoldfastError as error:
            log.warning("refusal audit failed", error=str(error))


class RateLimit:
    """Allows 60 records per minute and counts the ones above it."""

    def __init__(self) -> None:
        self._taken: deque[float] = deque(maxlen=_MAX_PER_MINUTE)
        self._dropped = 0

    def take(self) -> int | None:
        """The number of records dropped since the last allowed one, or None if this one must be dropped."""
        now = time.monotonic()
        if len(self._taken) == _MAX_PER_MINUTE and now - self._taken[0] < _MINUTE:
            self._dropped += 1
            return None
        self._taken.append(now)
        dropped, self._dropped = self._dropped, 0
        return dropped
