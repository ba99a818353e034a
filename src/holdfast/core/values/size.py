"""Sizes as text such as "512MB"."""

import re

from holdfast.core.errors import ConfigurationError

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"([0-9]{1,15})\s*([kmg]i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The number of bytes in a text such as "512MB" or "1GiB"."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise ConfigurationError(f"{text!r} is not a size; write a number of bytes, or 512MB, 1GB, 512MiB or 1GiB")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]
