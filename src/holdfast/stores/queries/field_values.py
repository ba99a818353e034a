"""The values of a header or payload field in samples of deliveries."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.stores.operation import Query, Steps, columns, operation

_LANE = ("n", "state", "queue", "consumer")


class FieldCount(NamedTuple):
    """How many sampled deliveries of lane number `n` have this value; None if they have none."""

    n: int
    value: str | None
    size: int


@operation(reads=True)
def field_values(
    path: Sequence[str], lanes: Sequence[tuple[str, str, str]], bound: int, *, is_header: bool
) -> Steps[list[FieldCount]]:
    """The values of a field, named by `path`, in the deliveries of each (state, queue, consumer); reads at most `bound`
    deliveries of each."""
    if not lanes:
        return []
    rows = yield Query(
        "field_values",
        {"path": list(path), "header": is_header, "bound": bound},
        {"lanes": columns(_LANE, [(n, *lane) for n, lane in enumerate(lanes)])},
    )
    return [FieldCount(int(n), None if value is None else str(value), int(count)) for n, value, count in rows]
