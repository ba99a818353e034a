"""Loads an app by its spec, and finds the spec of an app, so that a child process can load it."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


class AppNotFound(HoldfastError):
    """An app spec could not be loaded."""

    def __init__(
        self, spec: str, problem: str, remedy: str = "give module:attribute or path/file.py:attribute"
    ) -> None:
        super().__init__(spec, problem, remedy)
        self.spec, self.problem, self.remedy = spec, problem, remedy

    def __str__(self) -> str:
        return f"app {self.spec!r} cannot be loaded: {self.problem}; {self.remedy}"


def load_app(spec: str) -> "Holdfast":
    """The app that `module:attribute` or `path/file.py:attribute` names. It imports this code, so `spec` must never come from stored data."""
    from holdfast.app.holdfast import Holdfast

    module_name, colon, attribute = spec.rpartition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise AppNotFound(spec, "the module or the attribute is missing")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
        # Reading it may run code too: `holdfast.django:hf` is created when it is first read.
        found = getattr(module, attribute, None)
    except AppNotFound:
        raise
    except Exception as error:
        raise AppNotFound(
            spec, f"importing it raised {type(error).__name__}: {error}{_place(error)}", _remedy(error, module_name)
        ) from error
    if not isinstance(found, Holdfast):
        what = "does not exist" if found is None else f"is of type {type(found).__name__}, not Holdfast"
        raise AppNotFound(spec, f"its attribute {attribute} {what}")
    return found


def _place(error: BaseException) -> str:
    """The line of the user's code that raised the error."""
    ours = (str(Path(__file__).parents[2]), str(Path(importlib.__file__).parent), "<")
    frames = [one for one in extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    lines = [one for one in frames if "site-packages" not in one.filename]
    return f" at {lines[-1].filename}:{lines[-1].lineno}" if lines else ""


def _remedy(error: BaseException, module: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
        return "run the command in the folder of the module, or give path/file.py:attribute"
    if type(error).__module__.startswith("django.") and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        return "set DJANGO_SETTINGS_MODULE to the settings of the project, or run `manage.py holdfast`"
    return "correct it, then run the command again"


def app_spec(app: "Holdfast") -> str | None:
    """The spec by which a child process can load this app; None if no module has a name for it."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if value is app and attribute.isidentifier():
                file = getattr(module, "__file__", None)
                # A module that was loaded from a file may not be on the import path of a child.
                if file is not None and (name in ("__main__", "__mp_main__") or Path(file).stem == name):
                    return f"{Path(file).absolute()}:{attribute}"
                if name not in ("__main__", "__mp_main__"):
                    return f"{name}:{attribute}"
    return None


def _load_module(name: str) -> ModuleType:
    # Like `python -m`: modules in the working directory can be imported.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    _set_up_django()
    return importlib.import_module(name)


def _set_up_django() -> None:
    """Sets up Django if its settings module is configured: an app may import models, which need it."""
    if os.environ.get("DJANGO_SETTINGS_MODULE") and importlib.util.find_spec("django") is not None:
        import django
        from django.apps import apps

        if not apps.ready:
            django.setup()


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppNotFound(str(path), "there is no such file")
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(path.stem)
    if known is not None and path.samefile(getattr(known, "__file__", None) or os.devnull):
        return known
    _set_up_django()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise AppNotFound(str(path), "it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # A partly executed module must not be found by the next import.
        del sys.modules[path.stem]
        raise
    return module
