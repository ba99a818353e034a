"""The parameters of a job: the names and types of the values in its payload."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import ConfigurationError, InvalidPayload
from holdfast.core.events import payload
from holdfast.core.events.validation import misfit, validator_of

PLACEMENT_OPTIONS = frozenset(
    {"conn", "delay", "run_at", "key", "unique", "priority", "queue", "max_attempts", "retry"}
)
"""The options of `job.using(...)`."""


class Parameters:
    """A job's parameters without its context; reads and validates the stored arguments of a call."""

    def __init__(self, job: str, parameters: list[inspect.Parameter], types: dict[str, Any], kind: str = "job") -> None:
        job = f"{kind} {job}"
        if parameters and parameters[0].name == "self":
            raise ConfigurationError(f"{job} is a method, and a worker has no object to call it on; use a function")
        if parameters and parameters[0].name == "ctx" and "ctx" not in types:
            context = "Step" if kind == "step" else "Context"
            raise ConfigurationError(
                f"{job}: ctx has no annotation, so it would be an argument of the call; write ctx: {context}"
            )
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"{job}: parameter {parameter} cannot be stored by name; use ordinary or keyword-only parameters"
                )
        self._job = job
        self._call = f"{kind}.using({{}}=...).{'enqueue' if kind == 'job' else 'start'}(...)"
        self._signature = inspect.Signature(parameters)
        self.required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._types = {p.name: types.get(p.name, Any) for p in parameters}
        self._validators: dict[str, Callable[[object], object] | None] = {}
        self.names = frozenset(self._types)
        self._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self.first = next(iter(self._types), None)
        self.typed = any(known is not Any for known in self._types.values())

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included; raises `TypeError` for a call that Python would refuse."""
        # The signature takes twenty times as long as these calls, which need no defaults.
        if not kwargs and len(args) == len(self._positional) == len(self.names):
            return dict(zip(self._positional, args, strict=True))
        if not args and kwargs.keys() == self.names:
            return dict(kwargs)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = next((f"; write {self._call.format(name)}" for name in kwargs if self._is_option(name)), "")
            raise TypeError(f"{self._job}{self._signature}: {error}{hint}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def bind_rest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """`bind` without the first parameter, which gets its value when the job runs."""
        assert self.first is not None
        bound = self.bind((None, *args), kwargs)
        del bound[self.first]
        return bound

    def check_rest(self, text: str) -> None:
        """`read` of arguments without the first parameter; raises `InvalidPayload` for those that do not fit."""
        given = payload.decode(text)
        assert isinstance(given, dict)
        for name, value in given.items():
            self._read(name, value)

    def _is_option(self, name: str) -> bool:
        return name in PLACEMENT_OPTIONS and name not in self.names

    def read(self, text: str) -> dict[str, Any]:
        """The stored arguments of a call as the function takes them; raises `InvalidPayload` for those that do not fit."""
        given = payload.decode(text)
        if not isinstance(given, dict):
            raise InvalidPayload("$", f"{self._job} takes an object of named arguments")
        if given.keys() != self.names:
            if unknown := given.keys() - self.names:
                takes = ", ".join(sorted(self.names)) or "no values"
                raise InvalidPayload(f"$.{min(unknown)}", f"{self._job} has no such parameter; it takes {takes}")
            if missing := self.required - given.keys():
                raise InvalidPayload(f"$.{min(missing)}", f"{self._job} needs this parameter")
        return {name: self._read(name, value) for name, value in given.items()}

    def take(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The arguments that the function takes out of `given`, validated; others are ignored. Raises `InvalidPayload` if one is missing."""
        if missing := self.required - given.keys():
            raise InvalidPayload(f"$.{min(missing)}", f"{self._job} needs this parameter")
        return {name: self._read(name, given[name]) for name in self._types if name in given}

    def _read(self, name: str, value: object) -> object:
        if name not in self._validators:
            known = self._types[name]
            self._validators[name] = None if known is Any else validator_of(known).validate_python
        validate = self._validators[name]
        if validate is None:
            return value
        try:
            return validate(value)
        except ValueError as error:
            takes = self._signature.parameters[name].replace(default=inspect.Parameter.empty)
            raise misfit(error, f"{self._job} takes {takes}", (name,)) from error
