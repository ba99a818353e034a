"""Jobs of groups: a job of a later stage waits for the stage before, and the jobs before it wake it."""

import asyncio
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import get_args
from uuid import UUID

import orjson

from holdfast._log import get_logger
from holdfast.core.change import Change, DeadLetter, Deliver, Discard
from holdfast.core.delivery import Claim
from holdfast.core.errors import (
    ConfigurationError,
    DecryptionFailed,
    EncryptionKeyMissing,
    LeaseLost,
    StoreUnavailable,
    TerminalError,
)
from holdfast.core.events import payload
from holdfast.core.failures.report import report
from holdfast.core.failures.verdict import Verdict
from holdfast.core.group import GROUP_HEADER, GroupSummary, OnFailure, StageInput, read_group_header
from holdfast.core.outcome import Cancelled, Failed, Outcome, Snoozed, outcome_of
from holdfast.engine.handlers.handler import Handler, hints_of
from holdfast.engine.settlement.settler import Ack, announcing
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.groups.fan_in import (
    StageBlocked,
    StageOpened,
    StageWaiting,
    open_stage,
    stage_results,
    wake_stages,
)
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")

FIRST_CHECK = timedelta(seconds=1)
_LONGEST = 300.0
_PAUSE = timedelta(seconds=1)


class StageFailed(TerminalError):
    """Jobs of the stage before failed, and the job that waits for them has `on_failure="dead"`."""

    __module__ = "holdfast"  # failures are stored with this name; it stays when the class moves


class GroupStages:
    """Holds back jobs of later stages until the stage before has ended, and wakes them as soon as it has.

    Waking is a hint that a crash may lose. Then the waiting job is checked again, at intervals that grow with the age
    of its group to five minutes.
    """

    def __init__(self, store: Store, worker: str, max_bytes: int) -> None:
        self._store, self._worker, self._max_bytes = store, worker, max_bytes
        self._ended: set[UUID] = set()
        self._waking: asyncio.Task[None] | None = None

    async def enter(self, claimed: Claimed, handler: Handler) -> Claimed | Outcome:
        """The claim with the input of its job, or the outcome of a job that must not run now. `claimed` has its payload."""
        place = read_group_header(claimed.correlation.get(GROUP_HEADER))
        if place is None or place[1] == 0:
            return claimed
        try:
            found = await self._store.run(open_stage(Claim(claimed.id, self._worker, claimed.fence)))
            if isinstance(found, StageOpened):
                return await self._with_input(claimed, handler, found)
        except (StoreUnavailable, LeaseLost):
            return Snoozed(_PAUSE)
        except ConfigurationError as error:
            return Failed(report(error), Verdict.dead())
        except (EncryptionKeyMissing, DecryptionFailed) as error:
            return outcome_of(error)
        match found:
            case None:
                return claimed
            case StageWaiting(age):
                return Snoozed(timedelta(seconds=min(max(age, FIRST_CHECK.total_seconds()), _LONGEST)))
            case StageBlocked(summary, on_failure):
                why = _failures(summary)
                if on_failure is OnFailure.SKIP:
                    return Cancelled(why)
                remedy = "; replay them, then replay this job, which runs with the results as they are then"
                return Failed(report(StageFailed(why + remedy)), Verdict.dead())

    def settlement(self, claimed: Claimed, change: Change, ack: Ack) -> Ack:
        """The settlement of a job of a group, which wakes the next stage once it is durable."""
        place = read_group_header(claimed.correlation.get(GROUP_HEADER))
        # A snoozed job may have been held back by a job that ended in the meantime.
        ends = isinstance(change, Deliver | DeadLetter | Discard) or (place is not None and place[1] > 0)
        if place is None or not ends:
            return ack
        return announcing(ack, partial(self.ended, claimed))

    def ended(self, claimed: Claimed) -> None:
        """Records that a job of a group has ended. Its group is checked together with others of the same moment."""
        place = read_group_header(claimed.correlation.get(GROUP_HEADER))
        if place is None:
            return
        self._ended.add(place[0])
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(self._wake(), name="holdfast-groups")

    async def _wake(self) -> None:
        while self._ended:
            ids, self._ended = self._ended, set()
            try:
                if await self._store.run(wake_stages(ids)):
                    await self._store.hint()
            except Exception as error:  # noqa: BLE001
                log.warning("group wakeup failed", groups=len(ids), **error_fields(error))

    async def _with_input(self, claimed: Claimed, handler: Handler, opened: StageOpened) -> Claimed:
        parameter = input_parameter(handler)
        if parameter is None:
            return claimed
        value: object
        if opened.input is StageInput.RESULTS and takes_summary(handler):
            value = asdict(opened.summary)
        else:
            value = await self._results(handler, opened)
        given = payload.decode(claimed.payload)
        arguments = {**(given if isinstance(given, dict) else {}), parameter: value}
        return claimed._replace(payload=orjson.dumps(arguments).decode())

    async def _results(self, handler: Handler, opened: StageOpened) -> object:
        id, total, size = opened.summary.id, opened.summary.total, 0
        results: list[object] = []
        while len(results) < total:
            page = await self._store.run(stage_results(id, opened.stage - 1, len(results)))
            if not page:
                break
            size += sum(len(text) for text in page if text is not None)
            if size > self._max_bytes:
                raise ConfigurationError(
                    f"the results of the {total} jobs of group {id} exceed {self._max_bytes} bytes, which {handler.name} would "
                    "receive at once; annotate its first parameter as GroupSummary and read the results page by page with "
                    "hf.group_handle(summary.id).members(), then replay this job"
                )
            if opened.input is StageInput.RESULT and page[0] is None and opened.summary.done:
                raise ConfigurationError(
                    f"the result of the job before {handler.name} in group {id} is not stored any more; replay that job, "
                    "then this one"
                )
            results += [None if text is None else payload.decode(text) for text in page]
        return results[0] if opened.input is StageInput.RESULT else results


def input_parameter(handler: Handler) -> str | None:
    """The parameter that receives the results of the stage before: the first one after the context, if any."""
    assert handler.parameters is not None
    return handler.parameters.first


def takes_summary(handler: Handler) -> bool:
    """Whether the function takes a `GroupSummary` instead of a list of results."""
    annotation = hints_of(handler.function).get(input_parameter(handler) or "")
    return annotation is GroupSummary or GroupSummary in get_args(annotation)


def _failures(summary: GroupSummary) -> str:
    counts = [f"{n} {what}" for n, what in ((summary.failed, "failed"), (summary.cancelled, "cancelled")) if n]
    return f"jobs before it in group {summary.id}: {' and '.join(counts)}, of {summary.total}"
