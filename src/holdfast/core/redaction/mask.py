"""Masking of secrets that need no declaration: passwords in URLs, tokens, and headers with credentials."""

from __future__ import annotations

import re
from functools import lru_cache

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"authori[sz]ation|cookie|passw(?:or)?d|passphrase|secret|(?:^|[^a-z])token|api[-_]?key|access[-_]?key"
    r"|private[-_]?key|credential|(?:^|[^a-z])(?:session|csrf|xsrf)(?:$|[-_]?(?:id|key))",
    re.IGNORECASE,
)
_QUICK = re.compile(r"://|[=:]|bearer |whsec_|hf_", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]{0,30}\Z", re.IGNORECASE)
_LONGEST_SCHEME = 31
# The text after a port in a URL. In an http URL a password that begins like this must be percent-encoded. Other URLs
# have no "@" in their path, so there the "@" ends a password.
_PORT = re.compile(r"""\d{1,5}(?:[/?#,;)\]'"]|\Z)""")
_PORT_AND_PATH = re.compile(r"""\d{1,5}(?:/[^@'")\]]*)?(?:['")\]]|\?\w+=)""")
_WEB_SCHEMES = frozenset({"http", "https"})
_SPACE = re.compile(r"\s")
# In these URLs a user name without a password is a token.
_TOKEN_SCHEMES = frozenset({"nats", "tls", "ws", "wss"})
# The placeholder is matched first: a text may be masked twice.
_VALUE = r"""(?:\[redacted\]|[bru]{0,2}"(?:[^"\\]|\\.)*"?|[bru]{0,2}'(?:[^'\\]|\\.)*'?|[^\s&,;'")}\]]+)"""
_ASSIGNED = re.compile(
    r"""(\b[\w\-.]{0,60}?(?:passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credential|signature)
    ["']?(?:\s*=\s*|["']\s*:\s*))("""
    + _VALUE
    + ")",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# After a colon without quotes, as in YAML. Prose also contains "token: …", so only clear names or values that look like
# a secret match.
_LABELLED = re.compile(
    r"""(\b(?:[\w\-.]{0,60}?(?:passw(?:or)?d|passphrase|pwd|api[-_]?key|access[-_]?key|private[-_]?key))\s{0,3}:\s{1,3}
    |\b[\w\-.]{0,60}?(?:secret|token)\s{0,3}:\s{1,3}(?=[A-Za-z0-9+/=_.\-]{16})(?=[A-Za-z+/=_.\-]{0,200}\d))("""
    + _VALUE
    + ")",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_HEADER = re.compile(
    r"""((?:authorization|x-api-key)["']?\s*[:=]\s*(?:[bru]{1,2}(?=["']))?["']?)((?:bearer|basic|digest|token)\s+)?[^\s'",;]+""",
    re.I,
)
_COOKIE = re.compile(r"""(\bcookie["']?\s*[:=]\s*(?:[bru]{1,2}(?=["']))?["']?)[^\r\n'"]+""", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s+)(?=[^\s\d]{0,300}\d|\S{20})[A-Za-z0-9._~+/\-]{8,}=*", re.IGNORECASE)
# Holdfast's webhook secrets and API tokens.
_OURS = re.compile(r"\b(whsec_|hf_(?=[A-Za-z0-9_\-]{40}))[A-Za-z0-9+/=_\-]{8,}")


@lru_cache(1024)
def secret_name(name: str) -> bool:
    """Whether the value of a header or log field with this name is never shown.

    >>> secret_name("Authorization"), secret_name("request_id")
    (True, False)
    """
    return _SECRET_NAME.search(name) is not None


def mask(text: str) -> str:
    """Return `text` without passwords in URLs, tokens and assigned secrets.

    >>> mask("cannot reach postgresql://app:hunter2@db/shop")
    'cannot reach postgresql://app:[redacted]@db/shop'
    """
    if _QUICK.search(text) is None:
        return text
    text = _without_passwords(text)
    text = _OURS.sub(rf"\1{REDACTED}", text)
    text = _HEADER.sub(lambda m: f"{m[1]}{m[2] or ''}{REDACTED}", text)
    text = _COOKIE.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _LABELLED.sub(lambda m: m[1] + _quoted(m[2]), text)
    return _ASSIGNED.sub(lambda m: m[1] + _quoted(m[2]), text)


def _without_passwords(text: str) -> str:
    """`text` without passwords in URLs, in linear time."""
    kept: list[str] = []
    copied, at = 0, text.find("://")
    while at != -1:
        following = text.find("://", at + 3)
        scheme = _SCHEME.search(text, max(copied, at - _LONGEST_SCHEME), at)
        if scheme is not None:
            end = _end_of_address(text, scheme.start(), at + 3, len(text) if following == -1 else following)
            secret = _password(text, at + 3, end, scheme[0].lower())
            if secret is not None:
                kept += (text[copied : secret[0]], REDACTED)
                copied = secret[1]
        at = following
    return "".join((*kept, text[copied:])) if kept else text


def _end_of_address(text: str, start: int, begin: int, end: int) -> int:
    """The latest possible end of a URL: a space, or the closing quote of a quoted one."""
    quote = text[start - 1] if start else ""
    if quote in "\"'`<":
        closing = text.find(">" if quote == "<" else quote, begin, end)
        line = text.find("\n", begin, end)
        if closing != -1 and "@" in text[begin:closing] and (line == -1 or closing < line):
            return closing
    space = _SPACE.search(text, begin, end)
    return end if space is None else space.start()


def _password(text: str, begin: int, end: int, scheme: str) -> tuple[int, int] | None:
    """The start and end of the password in a URL. It may contain any character; the last @ ends it."""
    last = text.rfind("@", begin, end)
    if last == -1:
        return None
    colon = text.find(":", begin, last)
    slash = text.find("/", begin, last)
    if colon == -1 or (slash != -1 and slash < colon):
        return (begin, last) if scheme in _TOKEN_SCHEMES and slash == -1 and last > begin else None
    port = _PORT if scheme in _WEB_SCHEMES else _PORT_AND_PATH
    return None if port.match(text, colon + 1, end) else (colon + 1, last)


def _quoted(value: str) -> str:
    """The placeholder in the quotes of `value`."""
    opening = len(value) - len(value.lstrip("bruBRU"))
    quote = value[opening : opening + 1]
    return f"{value[:opening]}{quote}{REDACTED}{quote}" if quote in ("'", '"') else REDACTED
