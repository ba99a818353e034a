"""Refusals: who was turned away from what, in the log and in the audit."""

import time
from collections import deque
from collections.abc import Callable

import structlog

from holdfast.core.errors import HoldfastError
from holdfast.core.text import sanitise
from holdfast.ops.work import do, perform
from holdfast.stores.operate import record
from holdfast.stores.protocol import Store

log = structlog.get_logger("holdfast.refusals")

NOBODY = "nobody"
_MOST = 60
_MINUTE = 60.0


class Refusals:
    """Writes refusals to the audit, sixty a minute at most: a stranger at the door must not fill the store."""

    def __init__(self, kind: str, store: Callable[[], Store]) -> None:
        self._kind, self._store = kind, store
        # Whoever is known has an allowance apart: strangers must not be able to use it up and hide them.
        self._written = {known: deque[float](maxlen=_MOST) for known in (True, False)}

    async def record(self, actor: str, method: str, path: str, why: str, came_from: str | None) -> None:
        """Notes that `actor` was refused; never raises because of the store."""
        path = sanitise(path, 200)
        log.warning("request refused", actor_key=actor, operation=f"{method} {path}", error=why, where=self._kind)
        now, written = time.monotonic(), self._written[actor != NOBODY]
        if len(written) == _MOST and now - written[0] < _MINUTE:
            return
        written.append(now)
        entry = record(
            actor, "refused", self._kind, path, sanitise(why, 500), {"method": sanitise(method, 20), "from": came_from}
        )
        try:
            await perform(self._store(), do(entry))
        except HoldfastError as error:
            log.warning("a refusal could not be audited", error=str(error))
