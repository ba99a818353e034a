"""Samples of deliveries with their messages, in a time that does not depend on the size of the store."""

import time
from collections.abc import Callable

from holdfast.ops.queries.deliveries import Exported
from holdfast.ops.queries.pages import delivery_page
from holdfast.ops.queries.redaction import redactor, shown_message
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries.query import Filter, messages_with


def samples(
    wanted: Filter, *, limit: int = 20, timer: Callable[[], float] = time.monotonic
) -> TaskSteps[list[Exported]]:
    """The newest deliveries that match, each with its message without declared secrets. Bounded like `delivery_page`, so
    it may have fewer than `limit` although more match."""
    found = (yield from delivery_page(wanted, limit=limit, timer=timer)).items
    messages = yield from transact(messages_with(list({one.delivery.message_id for one in found})))
    known = yield from redactor()
    shown = {id: shown_message(known, message) for id, message in messages.items()}
    return [Exported(one, shown.get(one.delivery.message_id)) for one in found]
