"""Following what happened: the trace of a delivery's first run."""

from uuid import UUID

from holdfast.stores.operation import Query, Steps, operation


@operation(reads=True)
def first_trace(delivery_id: UUID) -> Steps[str | None]:
    """The traceparent of the first recorded run of a delivery; none when it left none."""
    rows = yield Query("first_trace", {"delivery_id": delivery_id})
    return None if not rows or rows[0][0] is None else str(rows[0][0])
