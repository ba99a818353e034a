"""Validation of values against classes and annotations with pydantic, which is imported on first use."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from holdfast.core.encryption import ENCRYPTED_START
from holdfast.core.errors import ConfigurationError, InvalidPayload
from holdfast.core.events.payload import decode
from holdfast.core.events.payload_errors import step
from holdfast.core.values.text import safe_str, sanitize

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

_SHOWN = 500

_validators: dict[Any, SchemaValidator] = {}


def validator_of(kind: Any) -> SchemaValidator:
    """The cached validator of a class or annotation; raises `ConfigurationError` if pydantic does not support it."""
    if kind not in _validators:
        # Imported on first use, to keep `import holdfast` fast.
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        try:
            _validators[kind] = TypeAdapter(kind).validator  # type: ignore[assignment]
        except (PydanticUserError, NameError) as error:
            raise ConfigurationError(
                f"payloads cannot be checked against {_name(kind)}: {safe_str(error).splitlines()[0]}; use types that "
                "pydantic knows and that can be imported at run time, or publish with validate=False"
            ) from error
    return _validators[kind]


def misfit(error: ValueError, expected: str, at: tuple[str | int, ...] = ()) -> InvalidPayload:
    """Converts an error of pydantic to `InvalidPayload`: the first invalid path, without its value."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return InvalidPayload("$", f"{sanitize(safe_str(error), _SHOWN)}; {expected}")
    found = errors(include_url=False, include_context=False, include_input=False)
    first, more = found[0], len(found) - 1
    path = "$" + "".join(step(part) for part in (*at, *first["loc"]))
    also = f" (and {more} more)" if more else ""
    return InvalidPayload(path, f"{sanitize(first['msg'], _SHOWN)}{also}; {expected}")


def stored_value(text: str | None, annotation: Any, what: str, remedy: str = "") -> Any:
    """A stored value as its annotation describes it; raises `InvalidPayload` for one that does not fit."""
    return fitting_value(None if text is None else decode(text), annotation, what, remedy)


def stored_values(texts: Sequence[str], annotation: Any) -> list[Any]:
    """`stored_value` of each text at once; raises `ValueError` if one does not fit, without saying which."""
    text = f"[{','.join(texts)}]"
    if ENCRYPTED_START in text:
        raise ValueError("a value may be encrypted")
    values = decode(text)
    if annotation is not Any and annotation is not NoneType:
        values = validator_of(list[annotation]).validate_python(values)
    assert isinstance(values, list)
    assert len(values) == len(texts)
    return values


def fitting_value(value: object, annotation: Any, what: str, remedy: str = "") -> Any:
    """A value as its annotation describes it; raises `InvalidPayload` for one that does not fit."""
    if annotation is Any or annotation is NoneType:
        return value
    try:
        return validator_of(annotation).validate_python(value)
    except ValueError as error:
        raise misfit(error, f"{what} must be {inspect.formatannotation(annotation)}{remedy}") from error


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
