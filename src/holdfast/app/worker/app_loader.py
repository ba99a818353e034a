"""Loads an app by its spec, and finds the spec of an app, so that a child process can load it."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


class AppNotFound(HoldfastError):
    """An app spec could not be loaded."""

    def __init__(self, spec: str, problem: str) -> None:
        super().__init__(spec, problem)
        self.spec, self.problem = spec, problem

    def __str__(self) -> str:
        return f"app {self.spec!r} cannot be loaded: {self.problem}; give module:attribute or path/file.py:attribute"


def load_app(spec: str) -> "Holdfast":
    """The app that `module:attribute` or `path/file.py:attribute` names. It imports this code, so `spec` must never come from stored data."""
    from holdfast.app.holdfast import Holdfast

    module_name, colon, attribute = spec.rpartition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise AppNotFound(spec, "the module or the attribute is missing")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
    except AppNotFound:
        raise
    except Exception as error:
        raise AppNotFound(spec, f"importing it raised {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Holdfast):
        what = "does not exist" if found is None else f"is a {type(found).__name__}, not Holdfast"
        raise AppNotFound(spec, f"its attribute {attribute} {what}")
    return found


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
