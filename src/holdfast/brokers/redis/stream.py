"""A Redis stream as a source and a target."""

from dataclasses import dataclass, field

from holdfast.brokers.endpoint import BrokerEndpoint, ack_timeout_seconds, check_start, check_texts
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStream(BrokerEndpoint):
    """A stream. Created by `stream()`; it connects only when it is opened."""

    adapter = "redis"
    client = "redis"
    stream: str
    group: str | None
    url: str | None = field(repr=False)
    ack_timeout: float
    start: str
    maxlen: int | None
    # Streams that this process has read: a group that is missing then was deleted, or the server lost it.
    seen: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"redis:{self.stream}" if self.group is None else f"redis:{self.stream}/{self.group}"


def stream(
    name: str,
    *,
    group: str | None = None,
    url: str | None = None,
    ack_timeout: Duration = "30s",
    start: str = "beginning",
    maxlen: int | None = None,
) -> RedisStream:
    """A Redis stream: a source for the consumers of `group`, or a target.

    `url` is `redis://…`; the default is `HOLDFAST_REDIS`. After `ack_timeout`, another consumer claims a record that is
    not acknowledged. A new group starts at the first record, or with `start="now"` at the end. `maxlen` trims the
    stream to about this length when sending: a group that has not read a record by then loses it.
    """
    check_texts("redis.stream", name, group=group, url=url)
    if maxlen is not None and (isinstance(maxlen, bool) or not isinstance(maxlen, int) or maxlen < 1):
        raise ConfigurationError(f"redis stream {name}: maxlen is {maxlen!r}; give a number of records")
    check_start(f"redis stream {name}", start)
    seconds = ack_timeout_seconds(f"redis stream {name}", ack_timeout)
    return RedisStream(stream=name, group=group, url=url, ack_timeout=seconds, start=start, maxlen=maxlen)
