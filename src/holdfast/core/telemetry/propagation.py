"""Which headers of an untrusted record are inherited by calls, events, log lines and alerts."""

import functools
import re
from collections.abc import Mapping

_SEPARATORS = re.compile(r"[^a-z0-9]")
_PROPAGATED = frozenset({"requestid", "traceid", "traceparent", "tracestate", "correlationid", "causationid"})


@functools.lru_cache(maxsize=1024)
def is_propagated(name: str) -> bool:
    """Whether a header is a request, trace or correlation id.

    Any other header may claim an identity, and anyone who can write to the stream can set it.

    >>> [is_propagated(name) for name in ("request_id", "X-Correlation-ID", "user_id", "x-customer-id")]
    [True, True, False, False]
    """
    return _SEPARATORS.sub("", name.lower()).removeprefix("x") in _PROPAGATED


def propagated(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of an untrusted record that may appear in calls, events, log lines and alerts about it."""
    return {name: value for name, value in headers.items() if is_propagated(name)}
