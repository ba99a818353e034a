"""The checker: what must hold for every history. It reads values only and shares no code with Holdfast."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from simulation.feature_checks import FEATURE_CHECKS
from simulation.history import (
    DELIVERED,
    ENDED,
    FAILED,
    PENDING,
    REMOVED,
    RUNNING,
    Change,
    History,
    LeaseChange,
    Rules,
    Run,
)

CONSUMERS = {
    "order": frozenset({"book", "post"}),
    "entry": frozenset({"ledger"}),
    "pay": frozenset({"pay"}),
    "call": frozenset({"call"}),
    "trip": frozenset({"trip/flight", "trip/hotel", "trip/invoice"}),
}
"""The consumers that always get a delivery of each kind of publication."""
TRANSACTIONAL = frozenset({"book", "pay", "ledger"})
"""Consumers whose effect commits with `ctx.complete`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


Check = Callable[[History, Rules], Iterator[str]]


def violations(history: History, rules: Rules) -> list[Violation]:
    """Everything that is wrong with a history, check by check."""
    history.runs = list(_with_fences(history))
    return [
        Violation(name, text) for name, check in (CHECKS | FEATURE_CHECKS).items() for text in check(history, rules)
    ]


def _with_fences(history: History) -> Iterator[Run]:
    """The runs; those of a batch with the fence of the last claim before them."""
    claims: dict[str, list[Change]] = defaultdict(list)
    for change in history.changes:
        if change.old_status == PENDING and change.status == RUNNING:
            claims[change.delivery].append(change)
    for run in history.runs:
        before = [claim.fence for claim in claims[run.delivery] if claim.n < run.start and claim.process == run.process]
        yield run._replace(fence=before[-1] if before else 0) if run.fence is None else run


def accepted_is_stored(history: History, rules: Rules) -> Iterator[str]:
    """A message exists if and only if the transaction that published it committed."""
    stored = Counter(message.n for message in history.messages if message.n is not None)
    ids = {message.id for message in history.messages}
    attempted = {one.n for one in history.publications}
    for one in history.publications:
        if one.outcome == "accepted" and one.kind != "album" and one.message not in ids:
            yield f"publication {one.n} ({one.kind}) was accepted as {one.message}, and no message is stored"
        if one.outcome == "rolled back" and stored[one.n]:
            yield f"publication {one.n} was rolled back, and its message is stored"
    albums = {one.n for one in history.publications if one.kind == "album"}
    for n, times in stored.items():
        if n not in attempted:
            yield f"message {n} was never published"
        if times > 1 and n not in albums:
            yield f"publication {n} is stored {times} times"


def fanned_out(history: History, rules: Rules) -> Iterator[str]:
    """Every message has one delivery for each of its consumers."""
    kinds = {one.n: one.kind for one in history.publications}
    created = Counter((change.message, change.consumer) for change in history.changes if change.old_status is None)
    for message in history.messages:
        if message.n is None:
            continue
        for consumer in rules.consumers.get(kinds[message.n], ()):
            if (times := created[message.id, consumer]) != 1 and kinds[message.n] != "trip":
                yield f"message {message.n} has {times} deliveries for {consumer}"
            if times > 1:
                yield f"message {message.n} got {times} deliveries for {consumer}"


def effect_once(history: History, rules: Rules) -> Iterator[str]:
    """An effect that commits with `ctx.complete` is applied once if its delivery is delivered, and otherwise never."""
    effects = Counter(effect.delivery for effect in history.effects if effect.consumer in TRANSACTIONAL)
    delivered = {
        change.delivery for change in history.changes if change.status == DELIVERED and change.consumer in TRANSACTIONAL
    }
    for delivery, times in effects.items():
        if times > 1:
            yield f"delivery {delivery} applied its effect {times} times"
        if delivery not in delivered:
            yield f"delivery {delivery} applied its effect and is not delivered"
    for delivery in delivered - set(effects):
        yield f"delivery {delivery} is delivered without its effect"


def fence_rises(history: History, rules: Rules) -> Iterator[str]:
    """A claim raises the fence, and nothing lowers it."""
    for change in history.changes:
        if change.old_fence is None:
            continue
        if change.fence < change.old_fence:
            yield f"{_name(change)}: the fence fell from {change.old_fence} to {change.fence}"
        taken = change.status == RUNNING and (change.old_status != RUNNING or change.owner != change.old_owner)
        if taken and change.fence != change.old_fence + 1:
            yield f"{_name(change)}: a claim changed the fence from {change.old_fence} to {change.fence}"


def owner_settles(history: History, rules: Rules) -> Iterator[str]:
    """Only the process that holds the claim settles a delivery; others must raise the fence."""
    owners = {lease.worker: lease.process for lease in history.leases}
    for change in history.changes:
        if change.old_status != RUNNING or change.status == RUNNING or change.fence != change.old_fence:
            continue
        if change.status != REMOVED and owners.get(str(change.old_owner)) != change.process:
            yield f"{_name(change)}: {change.process} settled a claim of {change.old_owner}"


def settled_after_run(history: History, rules: Rules) -> Iterator[str]:
    """A delivery is delivered only by the claim whose handler finished, or completed it in its transaction."""
    runs = defaultdict(list)
    for run in history.runs:
        runs[run.delivery, run.fence].append(run)
    for change in history.changes:
        # A rebuild completes what it has applied without a claim.
        if change.status != DELIVERED or change.old_status == DELIVERED or change.consumer == "view":
            continue
        found = [run for run in runs[change.delivery, change.fence] if run.start < change.n]
        if not found:
            yield f"{_name(change)}: delivered, and no handler ran with fence {change.fence}"
        elif change.consumer not in TRANSACTIONAL and not any(
            run.outcome == "returned" and run.end is not None and run.end < change.n for run in found
        ):
            yield f"{_name(change)}: delivered before its handler returned"


def run_once_per_claim(history: History, rules: Rules) -> Iterator[str]:
    """A claim runs its handler once, in the process that claimed it."""
    claims: dict[tuple[str, int | None], str] = {
        (change.delivery, change.fence): change.process
        for change in history.changes
        if change.status == RUNNING and change.old_status == PENDING
    }
    for (delivery, fence), times in Counter((run.delivery, run.fence) for run in history.runs).items():
        if times > 1:
            yield f"delivery {delivery} ran {times} times with fence {fence}"
    for run in history.runs:
        if claims.get((run.delivery, run.fence)) != run.process:
            yield f"delivery {run.delivery} ran with fence {run.fence} in {run.process}, which did not claim it"


def lease_respected(history: History, rules: Rules) -> Iterator[str]:
    """A claim is taken over only after the lease of the delivery and of its worker expired."""
    leases: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for lease in history.leases:
        leases[lease.worker].append((lease.n, 0 if lease.gone else lease.alive_until))
    for change in history.changes:
        if change.old_status != RUNNING or change.status != RUNNING or change.owner == change.old_owner:
            continue
        alive = [until for n, until in leases[str(change.old_owner)] if n < change.n]
        if change.old_lease is not None and change.at < change.old_lease:
            yield f"{_name(change)}: taken over {change.old_lease - change.at} ms before its lease expired"
        if alive and change.at < alive[-1]:
            yield f"{_name(change)}: taken over {alive[-1] - change.at} ms before the lease of its worker expired"


def lease_renewed(history: History, rules: Rules) -> Iterator[str]:
    """A worker without faults renews its lease."""
    records: dict[str, list[LeaseChange]] = defaultdict(list)
    for lease in history.leases:
        records[lease.worker].append(lease)
    starts: dict[str, list[int]] = defaultdict(list)
    for first, *_ in records.values():
        starts[first.process].append(first.at)
    for worker, (first, *later) in records.items():
        # A process that lost its lease, because the database was locked for so long, begins another session.
        next_session = (at for at in starts[first.process] if at > first.at)
        renewed = (one.at for one in later)
        end = min(history.ended.get(first.process, history.ended_at), *renewed, *next_session, history.ended_at)
        faults = [fault for fault in history.faults if fault.process == first.process and fault.at <= end]
        # Longer than any transaction of another process keeps the lease from being written.
        if not faults and end - first.at > 3 * rules.lease_ms:
            yield f"{worker} did not renew its lease for {end - first.at} ms"


def due_when_claimed(history: History, rules: Rules) -> Iterator[str]:
    """Nothing is claimed before its time."""
    for change in history.changes:
        # The longest wait of a debounced key ends also while its newest call is not due.
        if change.consumer == "index":
            continue
        if change.old_status == PENDING and change.status == RUNNING and (change.old_run_at or 0) > change.at:
            yield f"{_name(change)}: claimed {(change.old_run_at or 0) - change.at} ms too early"


def pause_respected(history: History, rules: Rules) -> Iterator[str]:
    """A worker that starts while a consumer is paused claims nothing of it. Others may know an old list of lanes."""
    registered: dict[str, int] = {}
    for lease in history.leases:
        registered.setdefault(lease.worker, lease.n)
    pauses: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for n, consumer, paused in history.pauses:
        pauses[consumer].append((n, paused))
    for change in history.changes:
        if change.old_status != PENDING or change.status != RUNNING:
            continue
        before = [one for one in pauses[change.consumer] if one[0] < change.n]
        if before and before[-1][1] and before[-1][0] < registered.get(str(change.owner), 0):
            yield f"{_name(change)}: claimed while its consumer was paused"


def attempts_counted(history: History, rules: Rules) -> Iterator[str]:
    """A claim counts one attempt, a takeover none, a run that ended keeps its own, and no delivery exceeds its budget."""
    ended: dict[tuple[str, int | None], int] = {
        (run.delivery, run.fence): run.end for run in history.runs if run.outcome in ("Unlucky", "returned") and run.end
    }
    for change in history.changes:
        if change.old_attempts is None:
            continue
        budget = change.budget or rules.attempts.get(change.consumer)
        added = change.attempts - change.old_attempts
        if change.old_status == PENDING and change.status == RUNNING:
            if added != 1:
                yield f"{_name(change)}: a claim counted {added} attempts"
            if budget is not None and change.attempts > budget:
                yield f"{_name(change)}: attempt {change.attempts} of {budget}"
        elif (
            added < 0
            and change.old_status == RUNNING
            # What a handler with `ctx.complete` returned is confirmed in the store first.
            and change.consumer not in TRANSACTIONAL | {"view"}
            # A claim whose reply is late may be released before its run begins.
            and ended.get((change.delivery, change.old_fence), change.n) < change.n
        ):
            yield f"{_name(change)}: the attempt of a run that ended was returned"
        elif added > 0:
            yield f"{_name(change)}: {change.old_status} to {change.status} counted {added} attempts"


def dead_for_a_reason(history: History, rules: Rules) -> Iterator[str]:
    """A delivery becomes a dead letter when its attempts are used up, its handler says so, or an operator does."""
    numbers = {run.delivery: run.n for run in history.runs}
    for change in history.changes:
        if change.status != FAILED or change.old_status == FAILED or change.discarded is not None:
            continue
        budget = change.budget or rules.attempts.get(change.consumer)
        terminal = rules.terminal(change.consumer, numbers.get(change.delivery))
        if budget is not None and change.attempts < budget and not terminal:
            yield f"{_name(change)}: dead after {change.attempts} of {budget} attempts"


def delivered_is_final(history: History, rules: Rules) -> Iterator[str]:
    """What is delivered stays delivered until it is pruned, and what is pruned does not return."""
    removed = set()
    for change in history.changes:
        if change.old_status == DELIVERED and change.status not in (DELIVERED, REMOVED):
            yield f"{_name(change)}: delivered became {change.status}"
        if change.status == REMOVED:
            removed.add(change.delivery)
            # A debounced call that a newer one superseded is discarded, and pruned like one that was delivered.
            if change.old_status != DELIVERED and change.discarded is None:
                yield f"{_name(change)}: pruned while {change.old_status}"
        elif change.delivery in removed:
            yield f"{_name(change)}: changed after it was pruned"


def acknowledged_action_holds(history: History, rules: Rules) -> Iterator[str]:
    """After a cancellation or a discard was acknowledged, the delivery is not delivered unless it is replayed."""
    changes: dict[str, list[Change]] = defaultdict(list)
    for change in history.changes:
        changes[change.delivery].append(change)
    for action in history.actions:
        if action.kind == "replay":
            continue
        later = [change for change in changes[action.delivery] if change.n > action.n]
        for change in later:
            if change.old_status == FAILED and change.status == PENDING:
                break
            if change.status in (DELIVERED, RUNNING):
                yield f"{_name(change)}: {change.status} after an acknowledged {action.kind}"


def fired_once(history: History, rules: Rules) -> Iterator[str]:
    """A schedule fires each occurrence once, and with `missed="all"` leaves none out."""
    keys = [message.key or "" for message in history.messages if message.type == "job.tick"]
    for key, times in Counter(keys).items():
        if times > 1:
            yield f"{key} fired {times} times"
    if len(set(keys)) < len(keys):
        return
    times_ms = sorted(message.at for message in history.occurrences)
    for before, after in pairwise(times_ms):
        if after - before != rules.tick_ms:
            yield f"occurrences at {before} and {after} are {after - before} ms apart, not {rules.tick_ms}"


def steps_once(history: History, rules: Rules) -> Iterator[str]:
    """A step of a workflow is delivered once, and a join starts after all steps before it."""
    done: dict[tuple[str, str], int] = {}
    for change in history.changes:
        if not change.consumer.startswith("trip/"):
            continue
        if change.status == DELIVERED and change.old_status != DELIVERED:
            done[change.message, change.consumer] = change.n
        if change.consumer == "trip/invoice" and change.status == RUNNING:
            missing = {"trip/flight", "trip/hotel"} - {name for message, name in done if message == change.message}
            if missing:
                yield f"{_name(change)}: the join started before {sorted(missing)}"


def runs_complete(history: History, rules: Rules) -> Iterator[str]:
    """Every run of a workflow ends with its last step."""
    ended = {(change.message, change.consumer) for change in history.changes if change.status == DELIVERED}
    accepted = {one.message for one in history.publications if one.kind == "trip" and one.outcome == "accepted"}
    for message in sorted(id for id in accepted if id is not None):
        for step in sorted(CONSUMERS["trip"]):
            if (message, step) not in ended:
                yield f"run {message}: {step} is not done"


def nothing_stuck(history: History, rules: Rules) -> Iterator[str]:
    """Without faults, everything ends within the leases, polls and retries that remain."""
    for delivery, status in history.deliveries.items():
        if status not in ENDED:
            yield f"delivery {delivery} is still {status} after {history.quiet_seconds:.1f} s without faults"


def no_internal_errors(history: History, rules: Rules) -> Iterator[str]:
    """Holdfast reports no error that a fault does not explain."""
    yield from history.errors


def _name(change: Change) -> str:
    return f"#{change.n} {change.process} {change.consumer} {change.delivery}"


CHECKS: dict[str, Check] = {
    function.__name__.replace("_", " "): function
    for function in (
        accepted_is_stored,
        fanned_out,
        effect_once,
        fence_rises,
        owner_settles,
        settled_after_run,
        run_once_per_claim,
        lease_respected,
        lease_renewed,
        due_when_claimed,
        pause_respected,
        attempts_counted,
        dead_for_a_reason,
        delivered_is_final,
        acknowledged_action_holds,
        fired_once,
        steps_once,
        runs_complete,
        nothing_stuck,
        no_internal_errors,
    )
}
