"""How the deliveries of a consumer are collected into batches."""

from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration, to_timedelta

MAX_SIZE = 1000
_WITHIN = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """A batch has `size` items, or fewer if its oldest has been due for `within`."""

    size: int
    within: timedelta


def batch_options(batch: int | None, within: Duration | None) -> BatchOptions | None:
    """The options of `batch=` and `within=`; None without a batch. Raises `ConfigurationError` for values that cannot work."""
    if batch is None:
        if within is not None:
            raise ConfigurationError("within= is how long a batch waits for its items; give batch= as well")
        return None
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_SIZE:
        raise ConfigurationError(f"batch is {batch!r}; give the number of items, 1 to {MAX_SIZE:,}")
    return BatchOptions(batch, _WITHIN if within is None else to_timedelta(within, name="within"))
