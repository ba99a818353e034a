"""What in a queue's settings can lose records that were confirmed.

AMQP does not list a queue's settings. But a declaration that differs is refused, and the refusal names the first
difference; so we declare, note it, and declare again in the queue's own terms until the server agrees.
"""

import re
from typing import Any

from holdfast.brokers.rabbitmq.line import Line

_MOST = 12
_DIFFERS = re.compile(
    r"inequivalent arg '([^']+)' for queue .*but current is (?:'([^']*)'|the value '([^']*)' of type '([^']*)'|(none))",
    re.DOTALL,
)
_UNLIMITED = "-1"


async def durability_warnings(name: str, queue: str, line: Line) -> list[str]:
    """None for a queue that is not there: ours would be made as it should be."""
    from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

    asked: dict[str, Any] = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}
    with line.told():
        try:
            await line.declare(queue, passive=True)
        except ChannelNotFoundEntity:
            return []
        for _ in range(_MOST):
            try:
                await line.declare(queue, **asked)
            except ChannelPreconditionFailed as error:
                if not _follow(asked, str(error)):
                    break
            else:
                break
    return described(name, asked, line.version)


def _follow(asked: dict[str, Any], refusal: str) -> bool:
    """Changes what is asked to what the queue is, as far as the refusal says."""
    found = _DIFFERS.search(refusal)
    if found is None:
        return False
    setting, plain, value, kind, absent = found.groups()
    if setting in asked:
        asked[setting] = plain == "true"
    elif absent:
        asked["arguments"].pop(setting, None)
    else:
        text = value if value is not None else plain
        asked["arguments"][setting] = text if kind == "longstr" else int(text) if text.lstrip("-").isdigit() else text
    return True


def described(name: str, queue: dict[str, Any], version: tuple[int, ...]) -> list[str]:
    """Each with what to set instead."""
    found: list[str] = []
    arguments = queue["arguments"]
    quorum = arguments.get("x-queue-type") == "quorum"
    if not queue["durable"]:
        found.append(f"{name} is not durable: a restart of the server deletes it; make it anew, durable")
    if queue["auto_delete"]:
        found.append(f"{name} is deleted with its last consumer, and what it holds; make it anew without auto-delete")
    if not quorum:
        found.append(
            f"{name} is not a quorum queue: it has one copy, on one node; make it anew with x-queue-type=quorum"
        )
    if "x-message-ttl" in arguments:
        found.append(
            f"{name} drops records after {arguments['x-message-ttl']} ms, read or not; leave out x-message-ttl"
        )
    if "x-expires" in arguments:
        found.append(f"{name} is deleted when nobody uses it for {arguments['x-expires']} ms; leave out x-expires")
    limits = [limit for limit in ("x-max-length", "x-max-length-bytes") if limit in arguments]
    if limits and not str(arguments.get("x-overflow", "")).startswith("reject-publish"):
        found.append(f"{name} drops its oldest records at {' and '.join(limits)}; set x-overflow=reject-publish")
    limit = arguments.get("x-delivery-limit", "20" if version >= (4,) else _UNLIMITED)
    if quorum and str(limit) != _UNLIMITED and "x-dead-letter-exchange" not in arguments:
        found.append(
            f"{name} drops a record that was handed over {limit} times, also by workers that died; "
            "make it anew with x-delivery-limit=-1 (from RabbitMQ 4), or give it a dead letter exchange"
        )
    return found
