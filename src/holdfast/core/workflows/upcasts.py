"""Upcasts of stored results: a step's result may have another form in a newer version of its workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import ConfigurationError
from holdfast.core.events import payload
from holdfast.core.events.event import NewerVersion

ResultUpcast = Callable[[Any], Any]
"""Converts the value of a stored result from one version to the next."""


class ResultUpcasts:
    """The upcasts of a workflow. A version in which the result of a step did not change needs none."""

    def __init__(self, workflow: str, version: int) -> None:
        self._workflow, self._version = workflow, version
        self._known: dict[str, dict[int, ResultUpcast]] = {}

    def add(self, step: str, from_version: object, function: ResultUpcast) -> None:
        """Declares an upcast; raises `ConfigurationError` for one that could not be used."""
        what = f"workflow {self._workflow}: upcast of step {step} from version {from_version!r}"
        if isinstance(from_version, bool) or not isinstance(from_version, int) or not 1 <= from_version < self._version:
            newest = self._version - 1
            remedy = f"give 1 to {newest}" if newest else "raise version= of the workflow first"
            raise ConfigurationError(f"{what}; the workflow is at version {self._version}, so {remedy}")
        if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{what} is {function!r}; give a plain function that takes the stored value")
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise ConfigurationError(f"{what} must take one argument, the stored value") from None
        known = self._known.setdefault(step, {})
        if from_version in known:
            raise ConfigurationError(f"{what} is declared twice; keep one of them")
        known[from_version] = function

    def stored_version(self, step: str, run_version: int) -> int | None:
        """The version to store with a result of this code; None if it is that of its run.

        So a worker with older code can read the result unless its form has changed.
        """
        known = self._known.get(step)
        form = max(known) + 1 if known else 1
        return form if form > run_version else None

    def changes(self, step: str, version: int) -> bool:
        """Whether `read` does more with a result of this version than to decode it."""
        return version > self._version or any(old >= version for old in self._known.get(step, ()))

    def read(self, step: str, text: str | None, version: int) -> object:
        """The value of a result that was stored in the form of `version`; raises `NewerVersion` if this code is older."""
        if version > self._version:
            raise NewerVersion(f"the result of step {step} of workflow {self._workflow}", version, self._version)
        value = None if text is None else payload.decode(text)
        if known := self._known.get(step):
            for old in range(version, self._version):
                if old in known:
                    value = known[old](value)
        return value
