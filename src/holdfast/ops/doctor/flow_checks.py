"""Checks of flow control: keys that a dead letter blocks, paused keys, and limits that hold work up for long."""

import shlex
from collections.abc import Iterator, Sequence

from holdfast.core.values.bounded_count import total
from holdfast.ops.doctor.checks import Facts, Finding, Level, many_deliveries
from holdfast.ops.doctor.work_checks import RECENT, since
from holdfast.ops.queries.flow_keys import Hold, KeyState
from holdfast.ops.queries.held_keys import HeldKeys


def check_flow(facts: Facts, found: Sequence[HeldKeys]) -> list[Finding]:
    """What holds up keys until an operator acts, and limits that hold due deliveries up for longer than `RECENT`."""
    return [finding for one in found for finding in (*_blocked(facts, one), *_paused(one), *_starving(facts, one))]


def _blocked(facts: Facts, one: HeldKeys) -> Iterator[Finding]:
    blocked = [key for key in one.keys if key.hold is Hold.DEAD_LETTER and key.waiting]
    if not blocked:
        return
    first = max(blocked, key=lambda key: key.waiting)
    name = one.consumer.name
    count = f"{len(blocked)} keys" if len(blocked) > 1 else f"key {_shown(first.key)}"
    waiting = total(key.waiting for key in blocked)
    message = f"{count} of {name} blocked by dead letters, with {many_deliveries(waiting)} waiting"
    if len(blocked) > 1:
        message += f", {first.waiting:,} of them behind key {_shown(first.key)}"
    message += f"; blocked for {since(first.blocked_at, facts.now)}"
    more = f"; all: `holdfast consumers keys {shlex.quote(name)} --state blocked`" if len(blocked) > 1 else ""
    yield Finding(
        "blocked keys",
        Level.WARN,
        message,
        f"run `holdfast dlq show {first.blocked_by}`, then `holdfast replay --id {first.blocked_by}` "
        f"or `holdfast dlq discard {first.blocked_by}`{more}",
    )


def _paused(one: HeldKeys) -> Iterator[Finding]:
    paused = [key for key in one.keys if key.hold is Hold.PAUSED]
    if paused:
        name, first = one.consumer.name, paused[0]
        count = f"{len(paused)} keys" if len(paused) > 1 else f"key {_shown(first.key)}"
        yield Finding(
            "paused keys",
            Level.WARN,
            f"{count} of {name} paused, with {many_deliveries(total(key.waiting for key in paused))} waiting",
            f"resume with `{shlex.join(['holdfast', 'consumers', 'resume-key', name, first.key])}`",
        )


def _starving(facts: Facts, one: HeldKeys) -> Iterator[Finding]:
    """Limits and rates that held the oldest due delivery up for too long."""
    name = one.consumer.name
    oldest = min((row.oldest_at for row in facts.counts if row.consumer == name and row.oldest_at), default=facts.now)
    for hold, option in ((Hold.LIMIT, "limit"), (Hold.RATE, "rate")):
        late = [
            key for key in one.keys if key.hold is hold and facts.now - (key.oldest_at or oldest) > RECENT and key.due
        ]
        if not late:
            continue
        worst = min(late, key=lambda key: key.oldest_at or oldest)
        where = "" if one.settings.key is None else f" for {_count(late)} of {name}"
        example = f"{2 * (one.settings.limit or 1)}" if option == "limit" else "COUNT/WINDOW"
        yield Finding(
            "limits",
            Level.WARN,
            f"{worst.why}{where or f' by {name}'}: {many_deliveries(total(key.due for key in late))} due, the oldest for "
            f"{since(worst.oldest_at or oldest, facts.now)}",
            f"raise it with `holdfast consumers limit {shlex.quote(name)} --{option} {example}`, "
            "or let the handler take less time",
        )


def _count(keys: Sequence[KeyState]) -> str:
    return f"{len(keys)} keys" if len(keys) > 1 else f"key {_shown(keys[0].key)}"


def _shown(key: str) -> str:
    return key or "''"
