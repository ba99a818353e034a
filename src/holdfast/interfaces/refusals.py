"""Refusals: who was turned away from what, in the log, and of known callers in the audit."""

import time
from collections import deque
from collections.abc import Callable

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError
from holdfast.core.text import sanitise
from holdfast.ops.work import do, perform
from holdfast.stores.operate import record
from holdfast.stores.protocol import Store

log = get_logger("holdfast.refusals")

NOBODY = "nobody"
_MOST = 60
_MINUTE = 60.0


class Refusals:
    """Records refused requests, a bounded number a minute.

    Those of known callers (a token, a signed-in visitor) are audited. Strangers are only logged: the audit is kept for
    good, and anybody who can connect could fill it.
    """

    def __init__(self, kind: str, store: Callable[[], Store]) -> None:
        self._kind, self._store = kind, store
        self._known, self._strangers = Allowance(), Allowance()

    async def record(self, actor: str, method: str, path: str, why: str, came_from: str | None) -> None:
        """Records that `actor` was refused; never raises because of the store."""
        known = actor != NOBODY
        unrecorded = (self._known if known else self._strangers).take()
        if unrecorded is None:
            return
        path, method = sanitise(path, 200), sanitise(method, 20)
        more = {"unrecorded": unrecorded} if unrecorded else {}
        log.warning(
            "request refused",
            actor_key=actor,
            operation=f"{method} {path}",
            error=why,
            where=self._kind,
            client=came_from,
            **more,
        )
        if not known:
            return
        entry = record(actor, "refused", self._kind, path, sanitise(why, 500), {"method": method, "from": came_from})
        try:
            await perform(self._store(), do(entry))
        except HoldfastError as error:
            log.warning("refusal audit failed", error=str(error))


class Allowance:
    """Sixty a minute; counts those beyond it."""

    def __init__(self) -> None:
        self._taken: deque[float] = deque(maxlen=_MOST)
        self._left_out = 0

    def take(self) -> int | None:
        """How many were left out since the last one; none when this one is to be left out, too."""
        now = time.monotonic()
        if len(self._taken) == _MOST and now - self._taken[0] < _MINUTE:
            self._left_out += 1
            return None
        self._taken.append(now)
        left_out, self._left_out = self._left_out, 0
        return left_out
