"""What is secret wherever it stands, undeclared: passwords in addresses, tokens, headers that carry them."""

from __future__ import annotations

import re
from functools import lru_cache

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"authori[sz]ation|cookie|passw(?:or)?d|passphrase|secret|(?:^|[^a-z])token|api[-_]?key|access[-_]?key"
    r"|private[-_]?key|credential|(?:^|[^a-z])(?:session|csrf|xsrf)(?:$|[-_]?(?:id|key))",
    re.IGNORECASE,
)
_QUICK = re.compile(r"://|[=:]|bearer ", re.IGNORECASE)
# A number after the colon is a port. A password may hold anything but a space or a quote; the last @ ends it.
_URL = re.compile(
    r"""([a-z][a-z0-9+.\-]{0,30}://[^\s/:@'"]*:)(?!\d{1,5}(?:[/?#\s'"]|$))[^\s'"]{0,300}?@(?![^\s'"/]{0,300}@)""", re.I
)
_ASSIGNED = re.compile(
    r"""(\b[\w\-]{0,60}?(?:passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_]?key|credential|signature)["']?
    (?:\s*=\s*|["']\s*:\s*))("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s&,;'")}\]]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_HEADER = re.compile(
    r"""((?:authorization|x-api-key)["']?\s*[:=]\s*["']?)((?:bearer|basic|digest|token)\s+)?[^\s'",;]+""", re.I
)
_COOKIE = re.compile(r"""(\bcookie["']?\s*[:=]\s*["']?)[^\r\n'"]+""", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s+)(?=\S*\d|\S{20})[A-Za-z0-9._~+/\-]{8,}=*", re.IGNORECASE)


@lru_cache(1024)
def secret_name(name: str) -> bool:
    """Say whether a header or log field of this name is never shown, whatever was declared.

    >>> secret_name("Authorization"), secret_name("request_id")
    (True, False)
    """
    return _SECRET_NAME.search(name) is not None


def mask(text: str) -> str:
    """Return `text` without the passwords of addresses, without tokens and assigned secrets, whoever wrote it.

    >>> mask("cannot reach postgresql://app:hunter2@db/shop")
    'cannot reach postgresql://app:[redacted]@db/shop'
    """
    if _QUICK.search(text) is None:
        return text
    text = _URL.sub(rf"\1{REDACTED}@", text)
    text = _HEADER.sub(lambda m: f"{m[1]}{m[2] or ''}{REDACTED}", text)
    text = _COOKIE.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _ASSIGNED.sub(lambda m: m[1] + _quoted(m[2]), text)


def _quoted(value: str) -> str:
    return f"{value[0]}{REDACTED}{value[0]}" if value[0] in "\"'" else REDACTED
