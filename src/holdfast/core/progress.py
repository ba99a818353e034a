"""Progress of a run: a fraction from 0 to 1, and a short note."""

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.text import sanitize

NOTE_LIMIT = 500
_ROUNDING = 1e-6


def check_progress(fraction: object, note: object) -> float:
    """The fraction, in 0..1. A sum of floating-point numbers may exceed 1 by a rounding error, which is cut off."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise ConfigurationError(
            f"ctx.progress got {type(fraction).__name__} as its fraction; pass a number from 0 to 1, such as done / total"
        )
    if not -_ROUNDING <= fraction <= 1 + _ROUNDING:
        raise ConfigurationError(
            f"ctx.progress got {fraction:g}; pass a number from 0 to 1, such as done / total (40 % is 0.4)"
        )
    if note is not None and not isinstance(note, str):
        raise ConfigurationError(
            f"ctx.progress got {type(note).__name__} as its note; pass text, such as ctx.progress(0.4, 'charging')"
        )
    return min(max(float(fraction), 0.0), 1.0)


def stored_note(note: str | None) -> str | None:
    """The note as both databases store it."""
    return None if note is None else sanitize(note, NOTE_LIMIT)
