"""Settings of a queue that can lose confirmed records.

AMQP cannot list the settings of a queue. But the server rejects a declaration that differs from the queue, and names
the first difference. So the queue is declared repeatedly, each time with the reported difference corrected, until the
server accepts the declaration.
"""

import re
from typing import TYPE_CHECKING, Any

from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from holdfast.brokers.rabbitmq.connection import connect

if TYPE_CHECKING:
    from holdfast.brokers.rabbitmq.queue import RabbitQueue

_MAX_DECLARATIONS = 12
_DIFFERENCE = re.compile(
    r"inequivalent arg '([^']+)' for queue .*but current is (?:'([^']*)'|the value '([^']*)' of type '([^']*)'|(none))",
    re.DOTALL,
)
_UNLIMITED = "-1"


async def durability_warnings(queue: "RabbitQueue") -> list[str]:
    """Reads the settings of a queue and checks them. A missing queue has no warnings: it is created correctly."""
    declaration: dict[str, Any] = {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}
    async with connect(queue, "holdfast doctor") as connection:
        with connection.broker_errors():
            try:
                await connection.declare(queue.queue, passive=True)
            except ChannelNotFoundEntity:
                return []
            for _ in range(_MAX_DECLARATIONS):
                try:
                    await connection.declare(queue.queue, **declaration)
                except ChannelPreconditionFailed as error:
                    if not _correct(declaration, str(error)):
                        break
                else:
                    break
        return check_settings(queue.name, declaration, connection.version)


def _correct(declaration: dict[str, Any], rejection: str) -> bool:
    """Changes the setting that the server names to its actual value; false if the text names none."""
    difference = _DIFFERENCE.search(rejection)
    if difference is None:
        return False
    setting, plain, value, kind, absent = difference.groups()
    if setting in declaration:
        declaration[setting] = plain == "true"
    elif absent:
        declaration["arguments"].pop(setting, None)
    else:
        text = value if value is not None else plain
        number = kind != "longstr" and text.lstrip("-").isdigit()
        declaration["arguments"][setting] = int(text) if number else text
    return True


def check_settings(name: str, queue: dict[str, Any], version: tuple[int, ...]) -> list[str]:
    """Settings that can lose a confirmed record, each with the setting to use."""
    warnings: list[str] = []
    arguments = queue["arguments"]
    is_quorum = arguments.get("x-queue-type") == "quorum"
    if not queue["durable"]:
        warnings.append(f"{name} is not durable: a restart of the server deletes it; create it again as durable")
    if queue["auto_delete"]:
        warnings.append(
            f"{name} is deleted with its records when its last consumer leaves; create it again without auto-delete"
        )
    if not is_quorum:
        warnings.append(
            f"{name} is not a quorum queue: it has one copy, on one node; create it again with x-queue-type=quorum"
        )
    if "x-message-ttl" in arguments:
        warnings.append(
            f"{name} drops records after {arguments['x-message-ttl']} ms, read or not; leave out x-message-ttl"
        )
    if "x-expires" in arguments:
        warnings.append(f"{name} is deleted after {arguments['x-expires']} ms without a consumer; leave out x-expires")
    limits = [limit for limit in ("x-max-length", "x-max-length-bytes") if limit in arguments]
    if limits and not str(arguments.get("x-overflow", "")).startswith("reject-publish"):
        warnings.append(f"{name} drops its oldest records at {' and '.join(limits)}; set x-overflow=reject-publish")
    limit = arguments.get("x-delivery-limit", "20" if version >= (4,) else _UNLIMITED)
    if is_quorum and str(limit) != _UNLIMITED and "x-dead-letter-exchange" not in arguments:
        warnings.append(
            f"{name} drops a record after {limit} deliveries, including those to workers that crashed; "
            "create it again with x-delivery-limit=-1 (from RabbitMQ 4), or give it a dead letter exchange"
        )
    return warnings
