"""Runs one fault against all loads of a laboratory, and counts the result of each load."""

import time
from dataclasses import dataclass, replace

from chaos.faults import Fault, FaultUnavailable
from chaos.journal import HOLD
from chaos.laboratory import Laboratory
from chaos.oracle import UNREADABLE, Counts, Oracle

WARM_UP_SECONDS = 1.0
PATIENCE_SECONDS = 90.0
"""How long after the end of a fault everything may take: leases, retries and reconnects, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, a fault and a store, with the counts of its run; without counts, the reason why it did not run."""

    store: str
    fault: str
    load: str
    counts: Counts | None
    reason: str = ""
    seconds: float = 0.0


class Runner:
    """Runs faults one after the other; each one has a separate window of items."""

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab
        self._windows = 0
        self.details: list[str] = []
        """What the processes printed, for scenarios that failed."""

    def run(self, fault: Fault, seconds: float) -> list[Scenario]:
        """Injects the fault for so many seconds; the scenarios of all loads."""
        lab = self._lab
        self._windows += 1
        window = f"w{self._windows}"
        began = time.monotonic()
        lab.most_limited = 0
        lab.journal.open_window(window)
        lab.start_rebuild()
        time.sleep(WARM_UP_SECONDS)
        failure = ""
        try:
            fault.inject(lab, seconds)
        except FaultUnavailable as reason:
            self._finish(window)
            return [Scenario(lab.store.name, fault.name, load, None, str(reason)) for load in lab.loads]
        except Exception as error:  # noqa: BLE001
            # The report must be written, and the other faults must run.
            failure = f"the lab failed: {error!r}"
        counts = {load: _with_problem(one, failure) for load, one in self._finish(window).items()}
        took = round(time.monotonic() - began, 1)
        if not all(one.holds for one in counts.values()):
            self.details.append(f"=== {lab.store.name}, {fault.name}\n{lab.describe()}")
        return [Scenario(lab.store.name, fault.name, load, counts[load], seconds=took) for load in lab.loads]

    def _finish(self, window: str) -> dict[str, Counts]:
        """Waits until the fault has no consequences any more, and counts."""
        lab, oracle = self._lab, Oracle(self._lab, window)
        healed = time.monotonic()
        deadline = healed + PATIENCE_SECONDS
        time.sleep(WARM_UP_SECONDS)
        lab.journal.open_window(HOLD)
        waiting = dict.fromkeys(lab.loads, "the client gets no answer")
        stuck = dict.fromkeys(lab.loads, 0.0)
        while waiting and time.monotonic() < deadline:
            for load in list(waiting):
                waiting[load] = self._unfinished(oracle, load)
                if not waiting[load]:
                    del waiting[load]
                    stuck[load] = time.monotonic() - healed
            time.sleep(0.2)
        for load in waiting:
            stuck[load] = PATIENCE_SECONDS
        return {load: self._counted(oracle, load, stuck[load], waiting.get(load, "")) for load in lab.loads}

    def _unfinished(self, oracle: Oracle, load: str) -> str:
        """What this load still waits for; nothing when it is complete."""
        try:
            if not self._lab.journal.is_idle(load):
                return "a client gets no answer"
            if load == "rebuild" and not self._lab.is_rebuilt:
                return "the rebuild does not end"
            missing = oracle.missing(load)
        except UNREADABLE as error:
            return f"the lab cannot read: {error}"
        return f"{len(missing)} effects are missing, such as {min(missing)}" if missing else ""

    def _counted(self, oracle: Oracle, load: str, stuck: float, waits_for: str) -> Counts:
        problem = f"stuck for {stuck:.0f} s: {waits_for}" if waits_for else ""
        return _with_problem(oracle.count(load, stuck), problem)


def _with_problem(counts: Counts, problem: str) -> Counts:
    return replace(counts, problems=(*counts.problems, problem)) if problem else counts
