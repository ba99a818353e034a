"""The checks of limits, rates and order, and of the mechanisms that only some seeds use."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from simulation.history import DELIVERED, ENDED, PENDING, RUNNING, Change, History, Rules


def limit_held(history: History, rules: Rules) -> Iterator[str]:
    """No more deliveries of a limited consumer hold a lease than its limit."""
    for consumer, limit in rules.limits.items():
        held: set[str] = set()
        for change in history.changes:
            if change.consumer == consumer:
                (held.add if change.status == RUNNING else held.discard)(change.delivery)
                if len(held) > limit and change.status == RUNNING and change.old_status != RUNNING:
                    yield f"{change.delivery}: {len(held)} deliveries of {consumer} are in flight, the limit is {limit}"


def order_kept(history: History, rules: Rules) -> Iterator[str]:
    """Deliveries of one key are delivered one at a time, in the order of their publications."""
    numbers = {message.id: message.n for message in history.messages}
    for consumer in rules.ordered:
        last: dict[str, int] = {}
        running: dict[str, set[str]] = defaultdict(set)
        for change in history.changes:
            if change.consumer != consumer:
                continue
            key, n = str(change.flow_key), numbers.get(change.message)
            (running[key].add if change.status == RUNNING else running[key].discard)(change.delivery)
            if len(running[key]) > 1 and change.old_status != RUNNING and change.status == RUNNING:
                yield f"{change.delivery}: two deliveries of key {key} are in flight"
            if change.status == DELIVERED and change.old_status != DELIVERED and n is not None:
                replayed = any(action.delivery == change.delivery for action in history.actions)
                if n < last.get(key, -1) and not replayed:
                    yield f"{change.delivery}: {n} was delivered after {last[key]}"
                last[key] = max(last.get(key, -1), n)


def rate_held(history: History, rules: Rules) -> Iterator[str]:
    """No more deliveries of a consumer are claimed in a window than its rate allows, retries included."""
    for consumer, (most, window_ms) in rules.rates.items():
        claims = [
            change
            for change in history.changes
            if change.consumer == consumer and change.old_status == PENDING and change.status == RUNNING
        ]
        for first, over in zip(claims, claims[most:], strict=False):
            # A window is counted in 50 buckets.
            if over.at - first.at < window_ms - window_ms / 50:
                yield f"{over.delivery}: {most + 1} claims of {consumer} in {over.at - first.at} ms"


def last_call_runs(history: History, rules: Rules) -> Iterator[str]:
    """Of debounced calls with one key, the last runs, or a later one."""
    numbers = {message.id: message.n for message in history.messages}
    newest: dict[int, int] = defaultdict(lambda: -1)
    excused: set[int] = set()
    for change in history.changes:
        n = numbers.get(change.message)
        if change.consumer != "index" or n is None:
            continue
        if change.delivery in history.touched:
            excused.add(n // 1000)
        if change.status == DELIVERED:
            newest[n // 1000] = max(newest[n // 1000], n)
    for one in history.publications:
        due = one.kind == "index" and one.outcome == "accepted" and one.n // 1000 not in excused
        if due and newest[one.n // 1000] < one.n:
            yield f"publication {one.n} was accepted, and neither it nor a later call with its key ran"


def group_waits(history: History, rules: Rules) -> Iterator[str]:
    """The job after a group runs after all jobs of the group have ended, and is there once."""
    numbers = {message.id: message.n for message in history.messages}
    parts: dict[int, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    after: Counter[int] = Counter()
    for change in history.changes:
        n = numbers.get(change.message)
        if n is not None and change.consumer == "part":
            parts[n][change.delivery].append(change)
        elif n is not None and change.consumer == "album":
            after[n] += change.old_status is None
    for run in history.runs:
        if run.consumer != "album" or run.n is None or not history.touched.isdisjoint(parts[run.n]):
            continue
        # A part that has ended may have been pruned.
        ended = [
            any(change.status in ENDED and change.n < run.start for change in changes)
            for changes in parts[run.n].values()
        ]
        if ended != [True] * rules.parts:
            yield f"{run.delivery}: the job after group {run.n} ran, and {ended.count(True)} of its jobs had ended"
    for one in history.publications:
        if one.kind == "album" and one.outcome == "accepted" and (after[one.n], len(parts[one.n])) != (1, rules.parts):
            yield f"group {one.n} has {len(parts[one.n])} jobs, and {after[one.n]} after them"


def relay_complete(history: History, rules: Rules) -> Iterator[str]:
    """The relay sends every event at least once, and nothing that is not committed."""
    if "relay" not in rules.features:
        return
    orders = {message.id for message in history.messages if message.type == "order.placed"}
    for message in sorted(orders - set(history.relayed)):
        yield f"event {message} was not relayed"
    for message in sorted(set(history.relayed) - {message.id for message in history.messages}):
        yield f"event {message} was relayed, and is not stored"


def projection_exact(history: History, rules: Rules) -> Iterator[str]:
    """After rebuilds, the projection has every event once."""
    if "projector" not in rules.features:
        return
    applied = Counter(effect.n for effect in history.effects if effect.consumer == "view")
    ended: dict[str, Change] = {change.message: change for change in history.changes if change.consumer == "view"}
    for message in history.messages:
        if message.type != "entry.added" or message.n is None:
            continue
        last = ended.get(message.id)
        if applied[message.n] > 1:
            yield f"event {message.n} is {applied[message.n]} times in the projection"
        if applied[message.n] == 0 and (last is None or last.status not in ENDED - {DELIVERED}):
            yield f"event {message.n} is not in the projection"


FEATURE_CHECKS = {
    function.__name__.replace("_", " "): function
    for function in (limit_held, order_kept, rate_held, last_call_runs, group_waits, relay_complete, projection_exact)
}
