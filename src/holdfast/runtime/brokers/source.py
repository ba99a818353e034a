"""The declaration of a consumer that reads from a broker."""

from dataclasses import dataclass

from holdfast.brokers.ingestion import EventRule
from holdfast.brokers.protocol import Source, Target
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.names import check_name

_MOST_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSource:
    """Where a consumer's records come from. `direct` runs its handler without storing them first, `concurrency` at a time."""

    source: Source
    patterns: tuple[str, ...]
    origin: str
    direct: bool
    concurrency: int
    dead_letters: Target | None = None
    events: EventRule | None = None
    """Records become events of the store for all subscribers, not messages of one consumer."""


def broker_source(
    name: str,
    source: Source,
    patterns: tuple[str, ...],
    *,
    direct: bool,
    concurrency: int,
    origin: str | None,
    dead_letters: Target | None,
    events: EventRule | None = None,
) -> BrokerSource:
    """Checks the options of `@hf.consumer(source=...)` and `hf.ingest`."""
    what = f"{'consumer' if events is None else 'ingest'} {name}"
    for option, endpoint in {"source": source, "dead_letters": dead_letters}.items():
        if endpoint is not None and not callable(getattr(endpoint, "open", None)):
            raise ConfigurationError(
                f"{what}: {option}= is {endpoint!r}; give a broker's topic, stream or queue, such as "
                "redis.stream('payments', group='shop')"
            )
    if getattr(source, "group", "") is None:
        raise ConfigurationError(
            f"{what}: source {source.name} has no group=; give the group that reads it, such as 'shop'"
        )
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_AT_ONCE:
        raise ConfigurationError(f"{what}: concurrency is {concurrency!r}; give 1 to {_MOST_AT_ONCE:,}")
    known = origin if origin is not None else source.name.partition(":")[0]
    return BrokerSource(
        source=source,
        patterns=patterns,
        origin=check_name("source", known),
        direct=direct,
        concurrency=concurrency,
        dead_letters=dead_letters,
        events=events,
    )
