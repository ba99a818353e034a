"""`hf.projectors`: rebuilds projectors with the app's handlers."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.engine.handlers.handler import Handler, Kind
from holdfast.projections.rebuild import LEASE, RebuildProgress, RebuildRequest, Rebuilt
from holdfast.runtime.rebuild import rebuild_projector
from holdfast.runtime.runtime import Runtime


class Projectors:
    """Rebuilds the projectors of an app. `hf.ops.projectors()` shows their state."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    @property
    def sync(self) -> "SyncProjectors":
        return SyncProjectors(self)

    async def rebuild(
        self,
        *names: str,
        actor: str,
        reason: str | None = None,
        resume: bool = False,
        skip: Iterable[UUID] = (),
        progress: Callable[[RebuildProgress], None] | None = None,
        lease: timedelta = LEASE,
    ) -> list[Rebuilt]:
        """Rebuilds the results of these projectors from the event store, one after another.

        A projector with `swap` builds a second result while the live one is read and updated; one transaction then
        replaces the live result. Without `swap` the projector is paused during the rebuild. A rebuild that was killed can
        run again from the beginning, or with `resume` from its checkpoint if the handler is the same. `skip` names events
        to leave out; discarded events are left out too. `RebuildStopped` names the event that the handler cannot apply.
        A killed rebuild blocks another one until its `lease` has expired.
        """
        handlers = [self.handler(name) for name in names]
        runtime = self._runtime()
        await runtime.registration.prepare()
        request = RebuildRequest(
            actor=actor, reason=reason, resume=resume, skip=frozenset(skip), progress=progress, lease=lease
        )
        return [await rebuild_projector(runtime, handler, request) for handler in handlers]

    def handler(self, name: str) -> Handler:
        """The projector of this name; raises `Refused` if it was declared without `reset`."""
        known = {one.name: one for one in self._runtime().handlers.values() if one.kind is Kind.PROJECTOR}
        if name not in known:
            raise NotFound("projector", name, f"this app has {', '.join(sorted(known)) or 'none'}")
        if known[name].reset is None:
            raise Refused(
                "rebuild",
                f"projector {name}",
                "declared without reset=",
                "add reset= to @hf.projector, and swap= to keep the live result readable",
            )
        return known[name]


class SyncProjectors:
    """The blocking methods of `Projectors`."""

    def __init__(self, projectors: Projectors) -> None:
        self._projectors = projectors

    def rebuild(
        self,
        *names: str,
        actor: str,
        reason: str | None = None,
        resume: bool = False,
        skip: Iterable[UUID] = (),
        progress: Callable[[RebuildProgress], None] | None = None,
        lease: timedelta = LEASE,
    ) -> list[Rebuilt]:
        """`Projectors.rebuild`, blocking, in a new event loop."""
        return asyncio.run(
            self._projectors.rebuild(
                *names, actor=actor, reason=reason, resume=resume, skip=skip, progress=progress, lease=lease
            )
        )
